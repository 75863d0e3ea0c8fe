// What the first visit to the bundled demo shows. Its report has the figures of this prompt and this strength.
export const DEMO = { model: "steerserve-demo", label: "sea", prompt: "Tell me a story.", value: 52.5 };

export function demoFeature(features: readonly { feature_idx: number; label: string | null }[]): number | undefined {
  return features.find(({ label }) => label === DEMO.label)?.feature_idx;
}
