// The memory of the loaded model as a sum: its parts, and the total that the process of its engine holds.
import { count } from "../rules/bytes";
import { otherOf, type MemoryPart } from "../rules/memoryParts";
import { Term } from "./Term";

const MEANS = {
  weights: "The parameters and buffers of the model, as they are held. An output head that the processor holds a second time counts.",
  cache: "The keys and values that are allocated now, for requests that run and for conversations that are kept.",
  saes: "The attached SAEs, with the copies that reading activations needs.",
  other: "The libraries, the tokenizer, and memory that is kept for the next pass.",
  unread: "At least so much of the parts is not in memory now. The system reads it from disk when it is needed.",
  host: "All memory of the engine’s process on this machine. Libraries that it shares with other processes count in each.",
  card: "All memory that the tensor library holds on the card. The card’s context, which the driver takes, is not in it.",
};

export function ModelMemory({ parts }: { parts: readonly MemoryPart[] }) {
  return (
    <ul className="lines" aria-label="Memory of the loaded model">
      {parts.map((part) => (
        <li key={`${part.replica ?? ""} ${part.device}`}>
          <span>
            {part.device === "cpu" ? "host memory" : part.device}
            {part.replica !== null && ` of ${part.replica}`}: <Sum part={part} />
          </span>
        </li>
      ))}
    </ul>
  );
}

function Sum({ part }: { part: MemoryPart }) {
  const total = <Term means={part.device === "cpu" ? MEANS.host : MEANS.card}>process</Term>;
  if (part.process_mb === null) return <>not measured</>;
  const other = otherOf(part);
  if (other === null) {
    return (
      <>
        {total} {mib(part.process_mb)}, of which the engine tells no parts
      </>
    );
  }
  return (
    <>
      <Term means={MEANS.weights}>weights</Term> {mib(part.weights_mb)} + <Term means={MEANS.cache}>KV cache</Term>{" "}
      {mib(part.cache_mb)} + <Term means={MEANS.saes}>SAEs</Term> {mib(part.saes_mb)}{" "}
      {other >= 0 ? (
        <>
          + <Term means={MEANS.other}>other</Term> {mib(other)}
        </>
      ) : (
        <>
          − <Term means={MEANS.unread}>not in memory now</Term> {mib(-other)}
        </>
      )}{" "}
      = {total} {mib(part.process_mb)}
    </>
  );
}

/** Whole MiB whatever the size, so that a reader can add up the parts. */
function mib(size: number | null): string {
  return `${count(size)} MiB`;
}
