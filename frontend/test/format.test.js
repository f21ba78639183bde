import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "../src/format.js";

const table = (name, make, cases) =>
  test(name, () => {
    for (const [value, expected] of cases) assert.equal(make(value), expected);
  });

// The same examples as in the docstrings of ortlens/views/wording.py, so that both say the same.
table("times", format.time, [[0, "0 ns"], [812, "812 ns"], [12_300, "12.3 µs"], [999_600, "1.00 ms"], [1_240_000, "1.24 ms"], [2_100_000_000, "2.10 s"], [-1500, "-1.50 µs"]]);
table("sizes", format.bytes, [[812, "812 B"], [12_595, "12.3 KiB"], [1_300_234, "1.24 MiB"], [1023, "1,023 B"]]);
table("shares", format.percent, [[1, "100 %"], [0.976, "97.6 %"], [0, "0 %"], [0.9999, ">99.9 %"], [0.0001, "<0.1 %"]]);
table("real numbers", format.real, [[0, "0"], [1.234e-7, "1.2e-07"], [0.03125, "0.0313"], [NaN, "NaN"], [-Infinity, "-∞"], [123456789, "1.2e+08"], [12.5, "12.5"]]);
table("functions", format.functionName, [["forward", "forward"], ["torch_dynamo_resume_in_forward_at_71", "rest of forward after line 71"], [null, "unnamed function"]]);

test("nothing hides or reorders what is read", () => {
  assert.equal(format.visible("a\u202eb\x1b[31m\u0000c\ud800"), "a\\u202eb\\u001b[31m\\u0000c\\ud800");
  assert.equal(format.visible("tab\tand\nline"), "tab and line");
  assert.equal(format.visible("Grüße 漢字 😀"), "Grüße 漢字 😀");
  assert.equal(format.clipped("x".repeat(1e6), 10), "xxxxxxxxx…");
});

test("places keep the last folder", () => {
  assert.equal(format.place("/home/ada/bert/modeling.py", 210), "bert/modeling.py:210");
  assert.equal(format.place("C:\\work\\bert\\modeling.py", null), "bert/modeling.py");
  assert.equal(format.place(null, 3), "unknown line");
});

test("cells know their units", () => {
  const column = (name, kind, unit = "") => ({ name, kind, unit });
  assert.equal(format.cell(1500, column("run_ns", "int", "ns")), "1.50 µs");
  assert.equal(format.cell(0.25, column("share", "float")), "25.0 %");
  assert.equal(format.cell(12345, column("line", "int")), "12345");
  assert.equal(format.cell(12345, column("calls", "int")), "12,345");
  assert.equal(format.cell([2, "s0"], column("shape", "list")), "[2, s0]");
  assert.equal(format.cell(null, column("x", "str")), "");
  assert.equal(format.cell(Infinity, column("max_abs", "float")), "∞");
});

test("CSV is quoted, raw, and no formula", () => {
  assert.equal(format.csv(["a", "b"], [["x,y", 1.5], ['"', null], ["=1+1", -2], [["p", "q"], true]]), 'a,b\n"x,y",1.5\n"""",\n\'=1+1,-2\np q,true');
});
