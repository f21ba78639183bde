/**
 * @param {HTMLElement} root
 * @returns {() => void}
 */
export function mountGraph(root) {
  root.textContent = "";
  return () => {};
}
