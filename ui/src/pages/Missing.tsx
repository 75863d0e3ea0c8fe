// The page for a link that leads nowhere.
import { Link } from "react-router";

export function Missing({ start }: { start: string }) {
  return (
    <div className="page">
      <h1>No such page</h1>
      <p>
        The link may be mistyped, or of another version. <Link to={start}>Go to the start.</Link>
      </p>
    </div>
  );
}
