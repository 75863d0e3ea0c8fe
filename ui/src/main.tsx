// The start of the page: theme, query client, live events, routes.
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { QueryClientProvider } from "@tanstack/react-query";
import { HashRouter, Navigate, Route, Routes } from "react-router";
import { connect } from "./api/live";
import { queryClient } from "./api/queries";
import { PAGES } from "./pages";
import { Missing } from "./pages/Missing";
import { Shell } from "./Shell";
import { applyTheme } from "./theme";
import "./css/tokens.css";
import "./css/base.css";
import "./css/parts.css";

applyTheme();
const client = queryClient();
connect(client);
const start = PAGES[0]?.path ?? "/";

const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        {/* the state in the link is shown at once, also while texts stream */}
        <HashRouter useTransitions={false}>
          <Routes>
            <Route element={<Shell />}>
              <Route index element={<Navigate to={start} replace />} />
              {PAGES.map(({ path, Page }) => (
                <Route key={path} path={`${path}/*`} element={<Page />} />
              ))}
              <Route path="*" element={<Missing start={start} />} />
            </Route>
          </Routes>
        </HashRouter>
      </QueryClientProvider>
    </StrictMode>,
  );
}
