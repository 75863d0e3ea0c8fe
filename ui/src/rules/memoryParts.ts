// The parts of the memory of the loaded model on one device.
export interface MemoryPart {
  replica: string | null;
  device: string;
  weights_mb: number | null;
  cache_mb: number | null;
  saes_mb: number | null;
  process_mb: number | null;
}

/**
 * The MiB of the process that belong to no named part; null where a part was not measured. A negative number of MiB is
 * the size of named parts that are not in memory now.
 */
export function otherOf({ weights_mb, cache_mb, saes_mb, process_mb }: MemoryPart): number | null {
  if (weights_mb === null || cache_mb === null || saes_mb === null || process_mb === null) return null;
  return process_mb - weights_mb - cache_mb - saes_mb;
}
