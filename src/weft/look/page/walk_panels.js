/**
 * The panels of Walk in their order, and why some of them are not there for a model.
 * @module walk_panels
 */

import { t } from "./i18n.js";
import { attentionPanel, crossPanel } from "./walk_attention.js";
import { headsPanel } from "./walk_heads.js";
import { kindsPanel } from "./walk_kinds.js";
import { lensPanel } from "./walk_lens.js";
import { mapPanel } from "./walk_map.js";
import { outputPanel } from "./walk_output.js";
import { scorePanel, projectionsPanel } from "./walk_score.js";
import { residualPanel, unitsPanel } from "./walk_steps.js";
import { idsPanel, tokensPanel } from "./walk_text.js";
import { embeddingPanel, positionPanel } from "./walk_vectors.js";

/** Each panel with the condition under which a model has it, and the sentence if it does not. */
const PANELS = [
  [mapPanel],
  [tokensPanel],
  [idsPanel],
  [embeddingPanel],
  [positionPanel],
  [projectionsPanel],
  [scorePanel],
  [attentionPanel],
  [headsPanel],
  [residualPanel],
  [unitsPanel],
  [crossPanel, (trace) => trace.isTranslator, "walk.p11.no"],
  [outputPanel, (trace) => trace.headStack !== null, "walk.p12.no"],
  [lensPanel, (trace) => trace.headStack !== null, "walk.p13.no"],
  [kindsPanel],
];

/** @param {import("./walk_panel.js").Walk} walk */
export function panelsOf(walk) {
  const has = ([, applies]) => !applies || applies(walk.trace);
  const panels = PANELS.filter(has).map(([create]) => create(walk));
  const absent = PANELS.filter((entry) => !has(entry)).map(([, , reason]) => t(reason));
  return { panels, absent };
}

