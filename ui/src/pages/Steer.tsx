// The first page: one prompt, answered twice from one batch, without steering and with it.
import { useEffect, useRef, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Navigate, useNavigationType, useSearchParams } from "react-router";
import { search } from "../api/steer";
import { Copy } from "../parts/Copy";
import { keyOf, opened } from "../rules/steer";
import { useShortcut } from "../shortcuts";
import "../css/chips.css";
import "../css/steer.css";
import { NoHooks } from "./NoHooks";
import { Columns } from "./steer/Columns";
import { DEMO, demoFeature } from "./steer/demo";
import { Features } from "./steer/Features";
import { remember, remembered } from "./steer/memory";
import { Prompt } from "./steer/Prompt";
import { Request } from "./steer/Request";
import { Sweep } from "./steer/Sweep";
import { useSteer, type Steer as State } from "./steer/useSteer";

export default function Steer() {
  const [query] = useSearchParams();
  const way = useNavigationType();
  const isOpening = useRef(true);
  useEffect(() => {
    isOpening.current = false;
  }, []);
  const kept = remembered();
  // a setting that a person takes back empties the link too
  const isVisit = isOpening.current || way !== "REPLACE";
  if (query.size === 0 && kept !== null && isVisit) return <Navigate to={{ search: kept }} replace />;
  return <Bench />;
}

function Bench() {
  const steer = useSteer();
  const find = useRef<HTMLInputElement>(null);
  useKept();
  useDemo(steer);
  useNoTemplate(steer);
  useShortcut("stop", steer.stop, steer.isRunning);
  useShortcut("send", () => steer.run(), steer.canRun);
  useShortcut("find", () => find.current?.focus());
  const [, setQuery] = useSearchParams();
  const reset = () => {
    remember("");
    setQuery(new URLSearchParams());
  };
  return (
    <div className="page steer">
      <header className="page-head">
        <div>
          <h1>Steer</h1>
          <p className="lead">
            One prompt, one seed, two answers: the model as it is, and with features turned up or down.
          </p>
        </div>
        <div className="row">
          <button type="button" className="small" onClick={reset}>
            Start anew
          </button>
          <Copy text={location.href} label="Copy link to this view" says="Copy link" />
        </div>
      </header>
      <NoHooks model={steer.model} all={steer.loaded.data?.models ?? []}>
        It still writes, and its text stands below, in one column.
      </NoHooks>
      <div className="bench">
        <Prompt steer={steer} />
        <Features steer={steer} find={find} />
        <div className="bench-main">
          <Columns steer={steer} />
          {(steer.place !== null || steer.isEdited) && <Sweep steer={steer} />}
          <Request steer={steer} />
        </div>
      </div>
    </div>
  );
}

/** A link that brings only a feature opens the page with the prompt that this tab had. */
function useKept(): void {
  const [query, setQuery] = useSearchParams();
  // read at the first drawing, before the page remembers the link itself
  const [opening] = useState(() => opened(query, remembered()));
  const set = useRef(setQuery);
  useEffect(() => {
    if (opening !== null) set.current(opening, { replace: true });
  }, [opening]);
}

/** A model without a chat template continues texts, so an empty page opens with a prompt. */
function useNoTemplate({ state, model, change }: State): void {
  const isEmpty = state.chat === null && state.prompt === "" && state.as === "chat";
  const opened = useRef<number>(null);
  useEffect(() => {
    // once for a model, so that a person may choose otherwise
    if (model === null || opened.current === model.id) return;
    opened.current = model.id;
    if (isEmpty && model.has_chat_template === false) change({ as: "prompt" });
  }, [model, isEmpty, change]);
}

/** On the first visit to the demo, a prompt and its sea feature are ready, so that one click shows two texts part. */
function useDemo({ state, model, place, change }: State) {
  const isFirst = state.chat === null && state.prompt === "";
  const hasFeatures = state.f !== null || state.e.length > 0;
  const isDemo = isFirst && model?.name === DEMO.model && place !== null;
  const labels = useQuery({ ...search(place?.sae_id ?? "", DEMO.label, null), enabled: isDemo }).data;
  const key = place === null ? null : keyOf(place);
  const index = labels === undefined ? undefined : demoFeature(labels.features);
  useEffect(() => {
    if (!isDemo || index === undefined) return;
    const chat = [{ role: "user", content: DEMO.prompt }];
    change(hasFeatures || key === null ? { chat } : { chat, f: [[index, DEMO.value, 1, key]] });
  }, [isDemo, index, hasFeatures, key, change]);
}
