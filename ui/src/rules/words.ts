// What words mean that a newcomer may not know.
export const MEANS = {
  lambda: "The intensity: all values that steer are multiplied by it. 0 is off, 1 is as set.",
  l0: "How many features fire at a token, on average.",
  fvu: "Fraction of variance unexplained: how much of the model’s activations the SAE loses. 0 is none, 1 is all.",
  claimed: "What the files of the SAE say of it. The service measures the same with one short text.",
  heartbeat: "The engine process reports again and again that it goes on. After a long silence it is ended.",
  held: "The type of the numbers in which the SAE is kept in memory. A smaller one takes less memory and is less exact.",
} as const;
