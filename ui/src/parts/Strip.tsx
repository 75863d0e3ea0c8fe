// A strip chart: the values of a few lines over the last moments, the newest at the right. It is loaded where a page
// shows one, because it brings its library.
import { useEffect, useMemo, useRef } from "react";
import UPlot from "uplot";
import { clock } from "../rules/age";
import { DASHES } from "./Swatch";
import "uplot/dist/uPlot.min.css";

const HEIGHT = 220;

export default function Strip({
  label,
  times,
  lines,
  slots,
  onPoint,
}: {
  /** What the chart shows, for screen readers. */
  label: string;
  /** The times of the moments, in milliseconds since 1970. */
  times: readonly number[];
  /** The values of each line at each moment; null where a value is not known. */
  lines: readonly (readonly (number | null)[])[];
  /** How many moments the chart has room for. */
  slots: number;
  /** Called with the moment under the pointer; null where there is none. */
  onPoint: (place: number | null) => void;
}) {
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<UPlot>(undefined);
  const data = useMemo<UPlot.AlignedData>(
    () => [times.map((_, index) => index), ...lines.map((line) => [...line])],
    [times, lines],
  );
  const latest = useRef({ times, slots, onPoint, data });
  useEffect(() => {
    latest.current = { times, slots, onPoint, data };
  });
  const count = lines.length;

  useEffect(() => {
    const host = place.current;
    if (host === null) return undefined;
    const draw = () => {
      chart.current?.destroy();
      const options = optionsOf(host, count, () => latest.current);
      chart.current = new UPlot(options, latest.current.data, host);
    };
    draw();
    const sizes = new ResizeObserver(() => chart.current?.setSize({ width: host.clientWidth, height: HEIGHT }));
    sizes.observe(host);
    // the canvas takes its colours from the theme when it is made
    const theme = new MutationObserver(draw);
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", draw);
    return () => {
      system.removeEventListener("change", draw);
      theme.disconnect();
      sizes.disconnect();
      chart.current?.destroy();
      chart.current = undefined;
    };
  }, [count]);

  useEffect(() => {
    if (chart.current?.series.length === data.length) chart.current.setData(data);
  }, [data]);

  return <div ref={place} className="strip-chart" role="img" aria-label={label} />;
}

type Latest = () => { times: readonly number[]; slots: number; onPoint: (place: number | null) => void };

function optionsOf(host: HTMLElement, count: number, latest: Latest): UPlot.Options {
  const colour = (name: string) => resolved(host, `var(${name})`);
  const stepped = UPlot.paths.stepped?.({ align: 1 });
  const axis = {
    stroke: colour("--quiet"),
    font: `14px ${getComputedStyle(host).fontFamily}`,
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width: host.clientWidth,
    height: HEIGHT,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
    scales: {
      x: {
        time: false,
        range: () => {
          const { times, slots } = latest();
          return [Math.min(0, times.length - slots), Math.max(1, times.length - 1)];
        },
      },
      y: { range: (_, least, most) => [Math.min(0, least ?? 0), Math.max(1, (most ?? 0) * 1.08)] },
    },
    axes: [
      {
        ...axis,
        size: 28,
        space: 96,
        incrs: [1, 2, 5, 10, 20, 50],
        values: (_, places) =>
          places.map((index) => {
            const time = latest().times[index];
            return time === undefined ? "" : clock(time, Date.now());
          }),
      },
      { ...axis, size: 52 },
    ],
    series: [
      {},
      ...Array.from({ length: count }, (_, line) => ({
        stroke: colour(`--line-${line}`),
        width: 2,
        dash: [...(DASHES[line] ?? [])],
        ...(stepped === undefined ? {} : { paths: stepped }),
        points: { show: true, size: 5, fill: colour("--panel") },
      })),
    ],
    hooks: { setCursor: [(chart) => latest().onPoint(chart.cursor.idx ?? null)] },
  };
}

/** A colour of the theme as the canvas takes it. */
function resolved(host: HTMLElement, colour: string): string {
  const probe = document.createElement("span");
  probe.style.color = colour;
  host.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
