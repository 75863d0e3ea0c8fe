// What the patches of a sweep did, once its job is done: the metric of both texts, the noise, and a heat map for each site.
import { useMemo, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { isEnded, job as asked } from "../../api/jobs";
import { patchesOf, type Patches } from "../../api/patches";
import { Figure } from "../../parts/Figure";
import { Panel } from "../../parts/Panel";
import { count, decimal, percent } from "../../rules/bytes";
import { metricSaid, type PatchState } from "../../rules/patch";
import { mapsOf, metricNumber, scaleOf, strongest } from "../../rules/patchMap";
import { JobRow } from "../jobs/JobRow";
import { HeatMap } from "./HeatMap";

export function Result({ id, asked: state }: { id: string; /** The settings of the link. */ asked: PatchState }) {
  const job = useQuery(asked(id)).data;
  const found = job === undefined || !isEnded(job) ? null : patchesOf(job);
  if (found === null) {
    return (
      <Panel title="What the patches do">
        <JobRow id={id} name="The sweep" onDone={() => undefined} />
      </Panel>
    );
  }
  return <Whole found={found} state={state} />;
}

function Whole({ found, state }: { found: Patches; state: PatchState }) {
  const { direction, metric, clean, corrupt, noise_floor, cells, tokens } = found;
  const maps = useMemo(() => mapsOf(found), [found]);
  const most = useMemo(() => scaleOf(found), [found]);
  const [open, setOpen] = useState(() => strongest(found));
  // a link to a job alone has no texts, and so no tokens of its metric
  const texts = state.clean === "" || state.corrupt === "" ? null : state;
  const said = metricSaid({ metric, target: state.target, against: state.against });
  const isApart = Math.abs(clean - corrupt) > noise_floor;
  return (
    <Panel
      title="What the patches do"
      about={`${count(cells.length)} patches of ${count(tokens.length)} tokens, ${
        direction === "denoise" ? "clean values in the corrupt text" : "corrupt values in the clean text"
      }. The metric is ${said}.`}
    >
      <div className="figures">
        <Figure label="Clean text" value={metricNumber(clean)} />
        <Figure label="Corrupt text" value={metricNumber(corrupt)} />
        <Figure label="Noise floor" value={metricNumber(noise_floor)} />
      </div>
      <Legend isApart={isApart} direction={direction} most={most} />
      {maps.map((map) => (
        <HeatMap key={map.site} map={map} sweep={found} most={most} open={open} texts={texts} onOpen={setOpen} />
      ))}
    </Panel>
  );
}

function Legend({ isApart, direction, most }: { isApart: boolean; direction: Patches["direction"]; most: number }) {
  const end = isApart ? percent(most) : decimal(most);
  const goal = direction === "denoise" ? "clean" : "corrupt";
  return (
    <div className="patch-legend">
      <p>
        {isApart
          ? `100 % is a patch that gives the metric of the ${goal} text, 0 % one that changes nothing.`
          : "The metric of the two texts differs by no more than the noise, so cells show the change of the metric itself."}
      </p>
      <ul className="legend" aria-label="Legend">
        <li>
          <span className="patch-ramp" aria-hidden="true" /> 0 to {end}
        </li>
        <li>
          <span className="patch-ramp" data-negative aria-hidden="true" /> striped: {isApart ? "away from it" : "negative"}, 0 to −{end}
        </li>
        <li>
          <span className="patch-none" aria-hidden="true">
            ·
          </span>{" "}
          no more than the noise floor: not told apart from doing nothing
        </li>
      </ul>
    </div>
  );
}
