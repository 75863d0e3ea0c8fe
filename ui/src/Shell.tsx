// The frame of every page: the strip that says what serves, the navigation, the lease, the notices, the keys.
import { Suspense, useEffect, useMemo, useState } from "react";
import { Link, NavLink, Outlet, useLocation, useNavigate } from "react-router";
import { useQuery } from "@tanstack/react-query";
import { useConnection } from "./api/live";
import { health } from "./api/queries";
import { GROUPS, PAGES } from "./pages";
import { KeyDialog } from "./KeyDialog";
import { Lost } from "./Lost";
import { Crash } from "./parts/Crash";
import { ConnectionDot } from "./parts/ConnectionDot";
import { LeaseBanner } from "./parts/LeaseBanner";
import { Notices } from "./parts/Notices";
import { ShortcutHelp } from "./parts/ShortcutHelp";
import { ServingStrip } from "./ServingStrip";
import { keyHandler, NATIVE, SHORTCUTS, useShortcut } from "./shortcuts";
import { switchTheme, theme } from "./theme";

const GO = PAGES.map(({ path, title, key }) => ({
  shortcut: { id: `go${path}`, keys: `g ${key}`, says: `Go to ${title}`, group: "Pages" },
  path,
}));
const ALL = [...SHORTCUTS, ...GO.map(({ shortcut }) => shortcut), ...NATIVE];

export function Shell() {
  const navigate = useNavigate();
  const { pathname } = useLocation();
  const connection = useConnection();
  const [isHelpOpen, setHelpOpen] = useState(false);
  const [mode, setMode] = useState(theme);
  useShortcut("help", () => setHelpOpen((isOpen) => !isOpen));
  useShortcut("theme", () => setMode(switchTheme()));

  const keys = useMemo(
    () => keyHandler(GO.map(({ shortcut, path }) => ({ shortcut, action: () => void navigate(path) }))),
    [navigate],
  );
  useEffect(() => {
    document.addEventListener("keydown", keys);
    return () => document.removeEventListener("keydown", keys);
  }, [keys]);

  // a narrow window scrolls the navigation
  useEffect(() => {
    document.querySelector("nav.pages [aria-current=page]")?.scrollIntoView?.({ block: "nearest", inline: "nearest" });
  }, [pathname]);

  const page = PAGES.find(({ path }) => pathname === path || pathname.startsWith(`${path}/`));
  useEffect(() => {
    const mark = connection === "lost" ? "○ " : "";
    document.title = `${mark}${page === undefined ? "" : `${page.title} · `}steerserve`;
  }, [page, connection]);

  const other = mode === "dark" ? "light" : "dark";
  return (
    <div className="shell">
      <a
        className="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        Skip to the page
      </a>
      <header className="strip">
        <Link to="/" className="brand">
          <img src="./icon.svg" alt="" width="22" height="22" /> steerserve
        </Link>
        <ServingStrip />
        <div className="strip-end">
          <ConnectionDot state={connection} />
          <button type="button" className="small" onClick={() => setMode(switchTheme())} aria-label={`Switch to ${other}`}>
            <span aria-hidden="true">{mode === "dark" ? "☀" : "☾"}</span>
          </button>
          <button type="button" className="small" onClick={() => setHelpOpen(true)} aria-label="Show the list of keys">
            ?
          </button>
        </div>
      </header>
      <nav className="pages" aria-label="Pages">
        <ul>
          {GROUPS.map(({ title: group, pages }) => (
            <li key={group}>
              <span id={`pages-${group}`} className="quiet">
                {group}
              </span>
              <ul aria-labelledby={`pages-${group}`}>
                {pages.map(({ path, title, key }) => (
                  <li key={path}>
                    <NavLink to={path} title={`${title} (g ${key})`}>
                      {title}
                    </NavLink>
                  </li>
                ))}
              </ul>
            </li>
          ))}
        </ul>
      </nav>
      <main id="main" tabIndex={-1}>
        <Lost />
        <Access />
        <Lease />
        <Crash key={pathname}>
          <Suspense fallback={<p className="loading page">Loading</p>}>
            <Outlet />
          </Suspense>
        </Crash>
      </main>
      <footer className="foot-line quiet">
        <a href="../docs">API</a>
        <a href="./licences.txt">Licences</a>
      </footer>
      <Notices />
      <KeyDialog />
      <ShortcutHelp shortcuts={ALL} isOpen={isHelpOpen} onClose={() => setHelpOpen(false)} />
    </div>
  );
}

// A component with this name is there only while other machines reach the service without a key.
function Access() {
  const { data } = useQuery(health);
  const access = data?.components?.find(({ name }) => name === "access");
  if (access === undefined) return null;
  return (
    <p className="notice notice-warn" role="status">
      Without a login: {access.message}.
    </p>
  );
}

function Lease() {
  const { data } = useQuery(health);
  return data?.lease ? <LeaseBanner lease={data.lease} /> : null;
}
