// The captures: values of the model over many texts, in files that can be saved here.
import { useQuery } from "@tanstack/react-query";
import { captures, describedCapture } from "../../api/captures";
import { CopyCode } from "../../parts/CopyCode";
import { QueryPanel } from "../../parts/Panel";
import { bytes, count } from "../../rules/bytes";
import { CaptureRow } from "./CaptureRow";

const MIB = 2 ** 20;

export function Captures() {
  const list = useQuery(captures);
  return (
    <QueryPanel
      title="Captures"
      query={list}
      about={
        <>
          The values of the model at some of its sites over many texts, in files for programs.
          {list.data && ` ${bytes(list.data.stored_bytes)} of at most ${bytes(list.data.limit_mb * MIB)} are stored.`}
        </>
      }
      isEmpty={({ captures: all }) => all.length === 0}
      empty={
        <>
          <p>No capture was made yet. A request makes one.</p>
          <CopyCode sent={describedCapture()} title="A capture as curl or Python" />
        </>
      }
    >
      {({ captures: all }) => (
        <>
          <ul className="records" aria-label={`${count(all.length)} ${all.length === 1 ? "capture" : "captures"}`}>
            {all.map((one) => (
              <CaptureRow key={one.id} capture={one} />
            ))}
          </ul>
          <CopyCode sent={describedCapture()} title="A capture as curl or Python" />
        </>
      )}
    </QueryPanel>
  );
}
