import { emptyState, helpLine } from "./help.js";
export function mountNumerics(root) {
  root.append(helpLine("numerics"), emptyState("numerics"));
  return () => {};
}
