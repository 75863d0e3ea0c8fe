// What can be done with a model on the pages that steer and read features.

interface Model {
  name: string;
  engine: "checkpoint" | "gguf";
  embedding_only: boolean;
}
export interface Abilities {
  /** Whether it writes text. */
  writes: boolean;
  /** Whether it takes seeds, and says the log-probabilities of tokens. */
  scores: boolean;
  /** Why no SAE can be attached; null where one can. */
  why: string | null;
}

export function abilitiesOf({ name, engine, embedding_only }: Model): Abilities {
  if (embedding_only) {
    const why = `${name} is an embedding model: it writes no text, and it has no layers to hook, so no SAE can be attached.`;
    return { writes: false, scores: false, why };
  }
  if (engine === "gguf") {
    const why = `${name} is a GGUF model, which llama.cpp serves: it has no layers to hook, so no SAE can be attached.`;
    return { writes: true, scores: false, why };
  }
  return { writes: true, scores: true, why: null };
}
