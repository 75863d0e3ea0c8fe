// The logit lens: which next token the stream points to after each layer, at each token of a text.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { describedLens, lens } from "../../api/lens";
import { CopyCode } from "../../parts/CopyCode";
import { Answered, Panel } from "../../parts/Panel";
import { everyNth, STEPS } from "../../rules/lens";
import { LensGrid } from "./LensGrid";

const WORDS = { 2: "second", 4: "fourth", 8: "eighth" };

export function Lens({ text, layers }: { text: string; /** The number of layers of the model. */ layers: number | null }) {
  // what was asked for; a text that changed is asked for anew
  const [asked, setAsked] = useState<{ text: string; step: number } | null>(null);
  const [step, setStep] = useState(1);
  const isAsked = asked !== null && asked.text === text && asked.step === step;
  const chosen = everyNth(layers, step);
  const query = useQuery({ ...lens(text, chosen), enabled: isAsked });
  const steps = STEPS.filter((one) => layers !== null && one < layers);
  return (
    <Panel
      title="Logit lens"
      about="The stream after each layer, read as if the later layers were not there: the most probable next token, and its probability."
      actions={
        <>
          {steps.length > 1 && (
            <select aria-label="Layers to read" value={step} onChange={(event) => setStep(Number(event.target.value))}>
              {steps.map((one) => (
                <option key={one} value={one}>
                  {one === 1 ? "every layer" : `every ${WORDS[one]} layer and the last`}
                </option>
              ))}
            </select>
          )}
          <button type="button" disabled={isAsked && query.isFetching} onClick={() => setAsked({ text, step })}>
            Read the layers
          </button>
        </>
      }
    >
      {isAsked ? (
        <Answered query={query}>{(answer) => <LensGrid answer={answer} />}</Answered>
      ) : (
        <p className="empty">
          An early layer is easily over-read: later layers may turn a direction before they use it, and this lens is not
          trained for a layer.
        </p>
      )}
      <CopyCode sent={describedLens(text, chosen)} />
    </Panel>
  );
}
