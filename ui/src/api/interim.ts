// The answers that the OpenAPI description does not describe yet. This file goes when it describes them.
import type { Lease } from "../parts/LeaseBanner";

export interface Health {
  status: string;
  version: string;
  timestamp: string;
  uptime_seconds: number;
  components: { name: string; status: string; message: string | null; latency_ms: number | null }[];
  circuit_breakers:
    | {
        name: string;
        state: string;
        is_open: boolean;
        failure_count: number;
        failure_threshold: number;
        retry_in_seconds: number;
        trips: number;
      }[]
    | null;
  model_loaded: boolean;
  model_name: string | null;
  sae_count: number;
  inference: {
    queue_max_concurrent: number | null;
    queue_max_pending: number | null;
    in_flight: number | null;
    queue_waiting: number | null;
    estimated_wait_seconds: number | null;
    error: string | null;
  };
  engine: { activity: string; silent_seconds: number; is_stalled: boolean; message: string | null } | null;
  active_profile: { id: string; name: string; source_kind: string; intensity: number } | null;
  circuits: { serving: number } | null;
  lease: Lease | null;
}
export interface Cards {
  read_at: string;
  reason: string | null;
  cards: {
    smi_index: number;
    uuid: string;
    name: string;
    total_mb: number;
    used_mb: number;
    free_mb: number;
    millm_reserved_mb: number | null;
    engine_memory: string | null;
    processes: { pid: number; used_mb: number | null }[];
    processes_reason: string | null;
  }[];
}
interface Percentiles {
  p50: number | null;
  p95: number | null;
  p99: number | null;
}
export interface Metrics {
  total_requests: number;
  active_requests: number;
  request_errors: number;
  latency_ms: Percentiles;
  time_to_first_token_ms: Percentiles;
  prompt_tokens: number;
  completion_tokens: number;
  model_load_count: number;
  model_load_failures: number;
}
export interface Models {
  models: {
    id: number;
    name: string;
    status: string;
    quantization: string;
    dtype: string | null;
    device: string | null;
    loaded_at: string | null;
    locked: boolean;
  }[];
  loaded_model_id: number | null;
}
export interface Attachments {
  count: number;
  entries: { sae_id: string; layer: number; site: string }[];
}
export interface Steering {
  enabled: boolean;
  values: Record<string, number>;
  others?: Record<string, Record<string, number>>;
}
