// What became of one document of a file that was imported.

export interface Imported {
  /** The id of what was imported; null where the service refused this document. */
  id: string | null;
  name: string;
  warnings: readonly string[];
  /** Why the service refused this document of a bundle; null where it was imported. */
  error: string | null;
}
