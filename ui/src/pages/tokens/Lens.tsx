// The logit lens or a trained one: which next token the stream points to after each layer, at each token of a text.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { describedLens, lens, lenses, LOGIT } from "../../api/lens";
import { CopyCode } from "../../parts/CopyCode";
import { Answered, Panel } from "../../parts/Panel";
import { everyNth, mapped, STEPS } from "../../rules/lens";
import { LensGrid } from "./LensGrid";
import { TrainedLenses } from "./TrainedLenses";

const WORDS = { 2: "second", 4: "fourth", 8: "eighth" };

export function Lens({ text, layers }: { text: string; /** The number of layers of the model. */ layers: number | null }) {
  // what was asked for; a text that changed is asked for anew
  const [asked, setAsked] = useState<{ text: string; step: number; kind: string } | null>(null);
  const [step, setStep] = useState(1);
  const [picked, setPicked] = useState(LOGIT);
  const trained = useQuery(lenses).data ?? [];
  const one = trained.find(({ id }) => id === picked) ?? null;
  const kind = one?.id ?? LOGIT;
  const isAsked = asked !== null && asked.text === text && asked.step === step && asked.kind === kind;
  const every = everyNth(layers, step);
  const chosen = one === null ? every : mapped(every, one.layers, layers);
  const query = useQuery({ ...lens(text, chosen, kind), enabled: isAsked });
  const steps = STEPS.filter((one) => layers !== null && one < layers);
  return (
    <Panel
      title={one === null ? "Logit lens" : "Trained lens"}
      about={
        one === null
          ? "The stream after each layer, read as if the later layers were not there: the most probable next token, and its probability."
          : `The stream after each layer as ${one.name} maps it, read as the next token: the most probable one, and its probability.`
      }
      actions={
        <>
          {trained.length > 0 && (
            <select aria-label="Lens" value={kind} onChange={(event) => setPicked(event.target.value)}>
              <option value={LOGIT}>logit lens</option>
              {trained.map(({ id, name }) => (
                <option key={id} value={id}>
                  {name}
                </option>
              ))}
            </select>
          )}
          {steps.length > 1 && (
            <select aria-label="Layers to read" value={step} onChange={(event) => setStep(Number(event.target.value))}>
              {steps.map((one) => (
                <option key={one} value={one}>
                  {one === 1 ? "every layer" : `every ${WORDS[one]} layer and the last`}
                </option>
              ))}
            </select>
          )}
          <button type="button" disabled={isAsked && query.isFetching} onClick={() => setAsked({ text, step, kind })}>
            {isAsked && query.isFetching ? "Reading" : "Read the layers"}
          </button>
        </>
      }
    >
      {isAsked ? (
        <Answered query={query}>{(answer) => <LensGrid answer={answer} />}</Answered>
      ) : (
        <p className="empty">
          {one === null
            ? "An early layer is easily over-read: later layers may turn a direction before they use it, and this lens is not trained for a layer."
            : "A trained lens belongs to one model. The service refuses it for another one."}
        </p>
      )}
      <CopyCode sent={describedLens(text, chosen, kind)} />
      <TrainedLenses lenses={trained} onRegistered={setPicked} />
    </Panel>
  );
}
