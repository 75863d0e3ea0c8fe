// The pages, in the groups and the order of the navigation. The first page is the start.
import { lazy, type ComponentType, type LazyExoticComponent } from "react";

export interface PageEntry {
  path: string;
  title: string;
  /** The second key of `g <key>`, which goes to the page. */
  key: string;
  Page: LazyExoticComponent<ComponentType>;
}

/** The pages by what a person wants of them. */
export const GROUPS: readonly { title: string; pages: readonly PageEntry[] }[] = [
  {
    title: "Steer",
    pages: [
      { path: "/steer", title: "Steer", key: "s", Page: lazy(() => import("./pages/Steer")) },
      { path: "/vectors", title: "Vectors", key: "v", Page: lazy(() => import("./pages/Vectors")) },
    ],
  },
  {
    title: "Find",
    pages: [
      { path: "/features", title: "Features", key: "f", Page: lazy(() => import("./pages/Features")) },
      { path: "/contrast", title: "Contrast", key: "x", Page: lazy(() => import("./pages/Contrast")) },
      { path: "/patch", title: "Patch", key: "k", Page: lazy(() => import("./pages/Patch")) },
      { path: "/tokens", title: "Tokens", key: "t", Page: lazy(() => import("./pages/Tokens")) },
      { path: "/corpora", title: "Corpora", key: "o", Page: lazy(() => import("./pages/Corpora")) },
      { path: "/probes", title: "Probes", key: "b", Page: lazy(() => import("./pages/Probes")) },
      { path: "/live", title: "Live", key: "l", Page: lazy(() => import("./pages/Live")) },
      { path: "/sensing", title: "Sensing", key: "e", Page: lazy(() => import("./pages/Sensing")) },
    ],
  },
  {
    title: "Documents",
    pages: [
      { path: "/profiles", title: "Profiles", key: "p", Page: lazy(() => import("./pages/Profiles")) },
      { path: "/clusters", title: "Clusters", key: "c", Page: lazy(() => import("./pages/Clusters")) },
      { path: "/circuits", title: "Circuits", key: "i", Page: lazy(() => import("./pages/Circuits")) },
      { path: "/runs", title: "Runs", key: "r", Page: lazy(() => import("./pages/Runs")) },
    ],
  },
  {
    title: "Host",
    pages: [
      { path: "/models", title: "Models", key: "m", Page: lazy(() => import("./pages/Models")) },
      { path: "/saes", title: "SAEs", key: "a", Page: lazy(() => import("./pages/Saes")) },
      { path: "/health", title: "Health", key: "h", Page: lazy(() => import("./pages/Health")) },
    ],
  },
];
export const PAGES: readonly PageEntry[] = GROUPS.flatMap(({ pages }) => pages);
