// The capture as column stores. Python packs it (ortlens/views/payload.py says how); nothing here knows a table by name,
// so a new column needs no change.

/**
 * @typedef {object} Column
 * @property {string} name
 * @property {"str"|"int"|"float"|"bool"|"list"} kind Type of a present value.
 * @property {string} unit `ns`, `bytes`, `flops`, or empty.
 * @property {string} meaning One sentence.
 * @property {ArrayLike<any>} values A value per row; null where there is none. Lists are shared: never change one.
 *
 * @typedef {object} Table
 * @property {string} name
 * @property {string} meaning One sentence.
 * @property {number} rows Rows that are here.
 * @property {number} total Rows that were recorded; more than `rows` where the oldest were left out.
 * @property {Map<string, Column>} columns
 * @property {string[]} unread Columns in a form that only a newer explorer knows; they are left out.
 * @property {(name: string) => ArrayLike<any>} column Values of a column; nulls for one that the capture does not have.
 * @property {(row: number, name: string) => any} get One value; null where there is none.
 * @property {(row: number) => Record<string, any>} row All values of a row.
 *
 * @typedef {object} Data
 * @property {number} version
 * @property {Record<string, any>} meta Name, backend, environment, what was left out.
 * @property {Record<string, any>} overview Facts and sentences; see `overview_facts` in Python.
 * @property {{path: string, type: string|null}[]} modules Paths in order of first use.
 * @property {object} [flame] Frames of one call; see flame.js.
 * @property {Map<string, (string|null)[]>} sources Lines of the user's files, where they were kept; null for those that were not.
 * @property {(name: string) => Table} table Every table exists, also when the capture has none of it.
 * @property {string[]} tableNames In the order in which they are shown.
 * @property {(name: string, column: string) => Map<any, number[]>} index Rows by value, built once and kept.
 */

const NOT_FINITE = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity };
const VERSION = 1;
const ENCODINGS = new Set(["const", "text", "ints", "floats", "bools", "sum", "lists"]);

/** @returns {Promise<object>} The payload inside base64 text of gzip'd JSON. */
export const payloadFromBase64 = async (text) => payloadFromBytes(bytesFromBase64(text));

/** @returns {Promise<object>} The payload inside gzip'd JSON. */
export const payloadFromBytes = async (bytes) => JSON.parse(new TextDecoder().decode(await unpackedBytes(bytes)));

/** @returns {Uint8Array} */
export function bytesFromBase64(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/**
 * @param {Uint8Array|ArrayBuffer|DataView} bytes Gzip'd. A DataView's own window is honoured: notebooks hand out views
 *   into larger buffers.
 * @returns {Promise<Uint8Array>} What is inside.
 */
export async function unpackedBytes(bytes) {
  const window = ArrayBuffer.isView(bytes) ? new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength) : bytes;
  const stream = new Blob([window]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @returns {number[]|Array<number|null>} Whole numbers that were packed as such or as differences. */
function integers(packed) {
  if (Array.isArray(packed)) return packed;
  const { base, delta } = packed;
  const values = new Float64Array(delta.length + 1);
  let sum = base;
  values[0] = sum;
  for (let i = 0; i < delta.length; i++) values[i + 1] = sum += delta[i];
  return values;
}

function texts(packed, strings) {
  const codes = integers(packed);
  const values = new Array(codes.length);
  for (let i = 0; i < codes.length; i++) values[i] = codes[i] < 0 ? null : strings[codes[i]];
  return values;
}

function lists(packed, strings) {
  const items = packed.text ? texts(packed.items, strings) : integers(packed.items);
  const distinct = [];
  let at = 0;
  for (const length of packed.lengths) distinct.push(length < 0 ? null : items.slice(at, (at += length)));
  if (!packed.codes) return distinct;
  const codes = integers(packed.codes);
  const values = new Array(codes.length);
  for (let row = 0; row < codes.length; row++) values[row] = distinct[codes[row]];
  return values;
}

function decoded(column, rows, strings, sibling) {
  switch (column.enc) {
    case "const":
      return new Array(rows).fill(column.kind === "float" && typeof column.value === "string" ? NOT_FINITE[column.value] : column.value);
    case "text":
      return texts(column.codes, strings);
    case "ints":
      return integers(column.values);
    case "floats":
      return column.values.map((value) => (typeof value === "string" ? NOT_FINITE[value] : value));
    case "bools":
      return column.values.map((value) => (value === null ? null : value === 1));
    case "sum": {
      const values = new Float64Array(rows);
      for (const part of column.of.map(sibling)) for (let row = 0; row < rows; row++) values[row] += part[row];
      return values;
    }
    case "lists":
      return lists(column, strings);
    default:
      throw new Error(`column encoding ${column.enc} is not known`);
  }
}

/** @returns {Table} A table whose columns are unpacked when they are first read. */
function tableFrom(name, packed, strings) {
  const rows = packed.rows;
  const values = new Map();
  const absent = new Array(rows).fill(null);
  const column = (wanted) => {
    if (!columns.has(wanted)) return absent;
    if (!values.has(wanted)) values.set(wanted, decoded(packed.columns[wanted], rows, strings, column));
    return values.get(wanted);
  };
  const unread = Object.keys(packed.columns).filter((key) => !ENCODINGS.has(packed.columns[key].enc));
  const columns = new Map(
    Object.entries(packed.columns).filter(([key]) => !unread.includes(key)).map(([key, about]) => [
      key,
      { name: key, kind: about.kind, unit: about.unit ?? "", meaning: about.meaning ?? "", get values() { return column(key); } },
    ]),
  );
  const get = (row, wanted) => column(wanted)[row] ?? null;
  const row = (number) => Object.fromEntries([...columns.keys()].map((key) => [key, get(number, key)]));
  return { name, meaning: packed.meaning ?? "", rows, total: packed.total ?? rows, columns, unread, column, get, row };
}

/**
 * @param {object} payload What `payload_from_capture` made.
 * @returns {Data}
 */
export function createData(payload) {
  if (typeof payload?.version !== "number") throw new Error("this is not the data of a capture");
  if (payload.version !== VERSION) throw new Error(`the data is of version ${payload.version}, this explorer reads version ${VERSION}: save and show the capture with the same version of ortlens`);
  const tables = new Map(Object.entries(payload.tables).map(([name, packed]) => [name, tableFrom(name, packed, payload.texts)]));
  const table = (name) => tables.get(name) ?? tableFrom(name, { rows: 0, columns: {} }, []);
  const indexes = new Map();
  const index = (name, column) => {
    const key = `${name}.${column}`;
    if (!indexes.has(key)) indexes.set(key, rowsByValue(table(name).column(column)));
    return indexes.get(key);
  };
  const { version, meta, overview, modules, flame } = payload;
  const sources = new Map(Object.entries(payload.sources ?? {}));
  return { version, meta, overview, modules, flame, sources, table, tableNames: [...tables.keys()], index };
}

/** @returns {Map<any, number[]>} Rows by value; a row with a list stands under each of its items. */
export function rowsByValue(values) {
  const rows = new Map();
  const add = (value, row) => (rows.has(value) ? rows.get(value).push(row) : rows.set(value, [row]));
  for (let row = 0; row < values.length; row++) {
    const value = values[row];
    if (value === null) continue;
    if (Array.isArray(value)) for (const item of new Set(value)) add(item, row);
    else add(value, row);
  }
  return rows;
}
