import { emptyState, helpLine } from "./help.js";
export function mountSource(root) {
  root.append(helpLine("source"), emptyState("source"));
  return () => {};
}
