// Features: the search for one, and the view of one.
import { useParams } from "react-router";
import { featureIn } from "../rules/places";
import { FeatureDetails } from "./features/FeatureDetails";
import { Finder } from "./features/Finder";
import "../css/features.css";

export default function Features() {
  const place = featureIn(useParams()["*"] ?? "");
  return place === null ? <Finder /> : <FeatureDetails key={`${place.sae} ${place.index}`} place={place} />;
}
