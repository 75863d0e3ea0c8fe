// The check of a rendered component for accessibility. Contrast is checked in a real browser, because jsdom draws
// nothing.
import axe from "axe-core";

export async function violations(element: Element): Promise<string[]> {
  const result = await axe.run(element, { rules: { "color-contrast": { enabled: false }, region: { enabled: false } } });
  return result.violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(", ")}`);
}
