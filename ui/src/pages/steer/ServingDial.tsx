// The dial λ of what serves: a profile, a cluster or a circuit.
import { useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { Dial } from "../../parts/Dial";
import { notifyError } from "../../parts/Notices";
import type { Steer } from "./useSteer";

const NOUNS = ["health", "steering", "clusters", "circuits", "profiles"];
const PAGES = { profile: "/profiles", cluster: "/clusters", circuit: "/circuits" };

export function ServingDial({ steer: { serving, act } }: { steer: Steer }) {
  const client = useQueryClient();
  if (serving === null) return null;
  const { kind, name, evidence } = serving;
  const dial = async (intensity: number) => {
    try {
      // the comparison that follows is of the live values that the dial gave
      await act(async () => {
        await serving.dial(intensity);
        await Promise.all(NOUNS.map((noun) => client.invalidateQueries({ queryKey: [noun] })));
      });
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <div className="serving-dial">
      <h3>
        The {kind} <Link to={PAGES[kind]}>{name}</Link> serves
      </h3>
      {evidence !== null && <p className="quiet">Evidence: {evidence}</p>}
      <Dial name={name} value={serving.intensity} range={serving.range} onCommit={dial} />
    </div>
  );
}
