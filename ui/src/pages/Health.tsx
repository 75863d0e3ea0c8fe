// Whether the service is well: components, queue, latencies, memory of the cards, circuit breakers, the last lines of the log.
import { useQuery } from "@tanstack/react-query";
import { cards, health, metrics } from "../api/queries";
import { Ago } from "../parts/Moment";
import { QueryPanel } from "../parts/Panel";
import { Status } from "../parts/Status";
import { span } from "../rules/age";
import { Breakers } from "./health/Breakers";
import { CardList } from "./health/CardList";
import { Components } from "./health/Components";
import { Latencies } from "./health/Latencies";
import { Log } from "./health/Log";
import { Queue } from "./health/Queue";
import { RequestTotals } from "./health/RequestTotals";

export default function Health() {
  const state = useQuery(health);
  const figures = useQuery(metrics);
  const memory = useQuery(cards);
  return (
    <div className="page">
      <header className="page-head">
        <h1>Health</h1>
        {state.data !== undefined && (
          <p className="row">
            <Status status={state.data.status} />
            <span className="quiet">
              steerserve {state.data.version}, up for {span(state.data.uptime_seconds)}, read <Ago at={state.dataUpdatedAt} />
            </span>
          </p>
        )}
      </header>
      <div className="columns">
        <div className="column">
          <QueryPanel title="Components" query={state}>
            {(data) => <Components components={data.components} engine={data.engine} />}
          </QueryPanel>
          <QueryPanel title="Circuit breakers" query={state} about="They stop calls to the model hub while the hub fails.">
            {(data) => <Breakers breakers={data.circuit_breakers} />}
          </QueryPanel>
        </div>
        <div className="column">
          <QueryPanel title="Queue" query={state}>
            {(data) => <Queue inference={data.inference} />}
          </QueryPanel>
          <QueryPanel title="Latency" query={figures} about="Of the last 1,000 generations.">
            {(data) => <Latencies metrics={data} />}
          </QueryPanel>
          <QueryPanel title="Counts" query={figures} about="Since the start of the service, this page included.">
            {(data) => <RequestTotals metrics={data} />}
          </QueryPanel>
        </div>
        <QueryPanel
          className="whole"
          title="Memory"
          query={memory}
        >
          {(data) => <CardList report={data} />}
        </QueryPanel>
        <Log />
      </div>
    </div>
  );
}
