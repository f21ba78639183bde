import { emptyState, helpLine } from "./help.js";
export function mountTimeline(root) {
  root.append(helpLine("timeline"), emptyState("timeline"));
  return () => {};
}
