import { emptyState, helpLine } from "./help.js";
export function mountBreaks(root) {
  root.append(helpLine("breaks"), emptyState("breaks"));
  return () => {};
}
