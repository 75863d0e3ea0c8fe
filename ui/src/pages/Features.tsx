// Features: the search for one, and the view of one.
import { useParams } from "react-router";
import { featureIn } from "../rules/places";
import { FeatureView } from "./features/FeatureView";
import { Finder } from "./features/Finder";
import "../css/features.css";

export default function Features() {
  const place = featureIn(useParams()["*"] ?? "");
  return place === null ? <Finder /> : <FeatureView key={`${place.sae} ${place.index}`} place={place} />;
}
