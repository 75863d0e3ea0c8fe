// The pages, in the order of the navigation. A page gets its line when it is whole; the first page is the start.
import { lazy, type ComponentType, type LazyExoticComponent } from "react";

export interface PageEntry {
  path: string;
  title: string;
  /** The second key of `g <key>`, which goes to the page. */
  key: string;
  Page: LazyExoticComponent<ComponentType>;
}

export const PAGES: readonly PageEntry[] = [
  { path: "/steer", title: "Steer", key: "s", Page: lazy(() => import("./pages/Steer")) },
  { path: "/tokens", title: "Tokens", key: "t", Page: lazy(() => import("./pages/Tokens")) },
  { path: "/features", title: "Features", key: "f", Page: lazy(() => import("./pages/Features")) },
  { path: "/contrast", title: "Contrast", key: "x", Page: lazy(() => import("./pages/Contrast")) },
  { path: "/corpora", title: "Corpora", key: "o", Page: lazy(() => import("./pages/Corpora")) },
  { path: "/live", title: "Live", key: "l", Page: lazy(() => import("./pages/Live")) },
  { path: "/profiles", title: "Profiles", key: "p", Page: lazy(() => import("./pages/Profiles")) },
  { path: "/clusters", title: "Clusters", key: "c", Page: lazy(() => import("./pages/Clusters")) },
  { path: "/vectors", title: "Vectors", key: "v", Page: lazy(() => import("./pages/Vectors")) },
  { path: "/probes", title: "Probes", key: "b", Page: lazy(() => import("./pages/Probes")) },
  { path: "/circuits", title: "Circuits", key: "i", Page: lazy(() => import("./pages/Circuits")) },
  { path: "/sensing", title: "Sensing", key: "e", Page: lazy(() => import("./pages/Sensing")) },
  { path: "/runs", title: "Runs", key: "r", Page: lazy(() => import("./pages/Runs")) },
  { path: "/models", title: "Models", key: "m", Page: lazy(() => import("./pages/Models")) },
  { path: "/saes", title: "SAEs", key: "a", Page: lazy(() => import("./pages/Saes")) },
  { path: "/health", title: "Health", key: "h", Page: lazy(() => import("./pages/Health")) },
];
