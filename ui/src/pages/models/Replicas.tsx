// The replicas of the loaded model: how many serve, what each does, and the changes that are possible meanwhile.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { changeReplicas, type Model, type Replica, type ReplicaChange, type ReplicaSet } from "../../api/models";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Facts, type Fact } from "../../parts/Facts";
import { Clock } from "../../parts/Moment";
import { Status } from "../../parts/Status";
import { asApiError } from "../../rules/errors";
import { count, mebibytes } from "../../rules/bytes";

/** The largest number of replicas that the service takes. */
const MOST = 64;

export function Replicas({ model, replicas }: { model: Model; replicas: ReplicaSet }) {
  const client = useQueryClient();
  const work = useMutation({
    mutationFn: (change: ReplicaChange) => changeReplicas(model.id, change),
    onSettled: () => Promise.all(["models", "health"].map((noun) => client.invalidateQueries({ queryKey: [noun] }))),
  });
  const { wanted, serving } = replicas;
  const isBusy = work.isPending || model.status !== "loaded";
  return (
    <section className="flow" aria-label={`Replicas of ${model.name}`}>
      <div className="row">
        <h4>Replicas</h4>
        <span aria-live="polite">
          {count(serving)} of {count(wanted)} {wanted === 1 ? "serves" : "serve"}
        </span>
        <span className="row replica-count">
          <button
            type="button"
            aria-label={`Fewer replicas of ${model.name}`}
            disabled={isBusy || wanted <= 1}
            onClick={() => work.mutate({ count: wanted - 1 })}
          >
            −
          </button>
          <button
            type="button"
            aria-label={`More replicas of ${model.name}`}
            disabled={isBusy || wanted >= MOST}
            onClick={() => work.mutate({ count: wanted + 1 })}
          >
            +
          </button>
        </span>
      </div>
      {work.error !== null && <ErrorNotice error={asApiError(work.error)} />}
      <ul className="replicas">
        {replicas.replicas.map((replica) => (
          <ReplicaRow
            key={replica.name}
            replica={replica}
            isLast={serving <= 1 && replica.state === "serving"}
            isBusy={isBusy}
            onChange={(action) => work.mutate({ name: replica.name, action })}
          />
        ))}
      </ul>
    </section>
  );
}

function ReplicaRow({
  replica,
  isLast,
  isBusy,
  onChange,
}: {
  replica: Replica;
  isLast: boolean;
  isBusy: boolean;
  onChange: (action: "drain" | "replace") => void;
}) {
  const isLeaving = replica.state === "draining";
  // in every other state, the reason is that of an earlier fault
  const isAway = replica.state === "lost" || replica.state === "stalled";
  return (
    <li aria-label={replica.name}>
      <div className="record-head">
        <span className="strong">{replica.name}</span>
        <Status status={replica.state} />
        {replica.replaces !== null && <span className="quiet">in the place of {replica.replaces}</span>}
        <span className="quiet">
          since <Clock at={replica.since} />
        </span>
        <button
          type="button"
          aria-label={`Drain ${replica.name}`}
          title={isLast ? "The last replica that serves stays. Unload the model instead." : "It ends after its requests."}
          disabled={isBusy || isLeaving || isLast}
          onClick={() => onChange("drain")}
        >
          Drain
        </button>
        <button
          type="button"
          aria-label={`Replace ${replica.name}`}
          title="Another engine is started in its place."
          disabled={isBusy || isLeaving}
          onClick={() => onChange("replace")}
        >
          Replace
        </button>
      </div>
      <Facts facts={factsOf(replica)} />
      {replica.reason !== null &&
        (isAway ? <p className="notice">{replica.reason}</p> : <p className="quiet">Last fault: {replica.reason}</p>)}
    </li>
  );
}

function factsOf(replica: Replica): Fact[] {
  // without a process, no memory is held
  const devices = replica.pid === null ? [] : replica.devices;
  const memory = devices.map((device, index) => `${device} ${mebibytes(replica.memory_mb[index] ?? null)}`);
  return [
    ["node", replica.node, replica.address ?? undefined],
    ["memory", memory.length === 0 ? null : memory.join(", ")],
    ["requests", `${count(replica.requests)} of ${count(replica.slots)}`, "Requests that run, of those that are meant to run at once."],
    ["epoch", count(replica.epoch), "The number of the last change of SAEs, steering or observing that the replica has."],
    ["restarts", count(replica.restarts)],
  ];
}
