import { emptyState, helpLine } from "./help.js";
export function mountFindings(root) {
  root.append(helpLine("findings"), emptyState("findings"));
  return () => {};
}
