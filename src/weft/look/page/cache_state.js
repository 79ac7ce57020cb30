/**
 * The reducer of the cache: a snapshot and the operations since then -> pages, their holders and the
 * radix tree. The rules are those of weft/cache/replay.py, and so is the JSON of a state; tests
 * compare the two after every operation.
 * @module cache_state
 */

/**
 * @typedef {Object} CachePage
 * @property {Map<string, number>} owners  references of each holder
 * @property {number} rows                 filled leading rows
 */

/**
 * @typedef {Object} CacheNode
 * @property {number|null} parent    null: the root of a namespace
 * @property {string} namespace
 * @property {number[]|null} tokens  null: the text is another caller's
 * @property {number} numTokens
 * @property {number[][]} blocks     for each page of tokens, the page ids of all KV cache groups
 * @property {number} locks          sequences that use the node now
 * @property {number} lastUse
 */

/**
 * @typedef {Object} CacheState
 * @property {Map<number, CachePage>} pages  free ones are absent
 * @property {Map<number, CacheNode>} nodes
 */

/** The state of a snapshot, or an empty one. @returns {CacheState} */
export function createCacheState(snapshot = { pages: [], nodes: [] }) {
  const pages = snapshot.pages.map(({ page, owners, rows }) => [page, { owners: new Map(Object.entries(owners)), rows }]);
  const nodes = snapshot.nodes.map((one) => [one.node, nodeOf(one, one.locks, one.last_use)]);
  return { pages: new Map(pages), nodes: new Map(nodes) };
}

function nodeOf(entry, locks, lastUse) {
  return {
    parent: entry.parent,
    namespace: entry.namespace,
    tokens: entry.tokens ? [...entry.tokens] : null,
    numTokens: entry.num_tokens,
    blocks: entry.blocks.map((block) => [...block]),
    locks,
    lastUse,
  };
}

/** The JSON of a state, as `ReplayedState.to_json`. @param {CacheState} state */
export function cacheStateJson(state) {
  const byId = ([one], [other]) => one - other;
  const pages = [...state.pages].sort(byId).map(([page, { owners, rows }]) => ({ page, owners: Object.fromEntries(owners), rows }));
  const nodes = [...state.nodes].sort(byId).map(([node, one]) => ({
    node,
    parent: one.parent,
    namespace: one.namespace,
    tokens: one.tokens && [...one.tokens],
    num_tokens: one.numTokens,
    blocks: one.blocks.map((block) => [...block]),
    locks: one.locks,
    last_use: one.lastUse,
  }));
  return { pages, nodes };
}

/** How often a page is held. @param {CachePage} page */
export function countReferences(page) {
  let count = 0;
  for (const references of page.owners.values()) count += references;
  return count;
}

/**
 * Apply one operation in place; an Error for one that contradicts the state.
 * @param {CacheState} state
 * @param {Object} op  an operation of events.py, as JSON
 */
export function applyCacheOp(state, op) {
  const apply = { ...PAGE_OPS, ...TREE_OPS }[op.op];
  if (!apply) throw new Error(`unknown operation ${op.op}`);
  apply(state, op);
}

function heldPage(state, op) {
  const page = state.pages.get(op.page);
  if (!page) throw new Error(`${op.op} of page ${op.page}, which is free`);
  return page;
}

function dropReference(state, op) {
  const page = heldPage(state, op);
  const left = (page.owners.get(op.owner) ?? 0) - 1;
  if (left < 0) throw new Error(`${op.owner} does not hold page ${op.page}`);
  if (left) page.owners.set(op.owner, left);
  else page.owners.delete(op.owner);
  if (!page.owners.size) state.pages.delete(op.page);
}

const PAGE_OPS = {
  reset(state) {
    state.pages.clear();
    state.nodes.clear();
  },
  alloc(state, op) {
    if (state.pages.has(op.page)) throw new Error(`page ${op.page} is allocated while it is held`);
    state.pages.set(op.page, { owners: new Map([[op.owner, 1]]), rows: 0 });
  },
  share(state, op) {
    const { owners } = heldPage(state, op);
    owners.set(op.owner, (owners.get(op.owner) ?? 0) + 1);
  },
  write(state, op) {
    heldPage(state, op).rows = op.rows;
  },
  copy(state, op) {
    heldPage(state, op).rows = heldPage(state, { op: "copy", page: op.from }).rows;
  },
  free: dropReference,
  evict(state, op) {
    dropReference(state, op);
    if (op.owner === "prefix") clearFromTree(state, op.page);
  },
};

/** The page that was evicted becomes 0 in the block that lists it. */
function clearFromTree(state, page) {
  for (const node of state.nodes.values()) {
    for (const block of node.blocks) {
      const place = block.indexOf(page);
      if (place >= 0) block[place] = 0;
    }
  }
}

function existingNode(state, op) {
  const node = state.nodes.get(op.node);
  if (!node) throw new Error(`${op.op} of node ${op.node}, which does not exist`);
  return node;
}

function tokensPerBlock(node) {
  return node.blocks.length ? Math.floor(node.numTokens / node.blocks.length) : 0;
}

/** Drop all but the first blocks of a node and their tokens. */
function keepBlocks(node, number) {
  const size = tokensPerBlock(node) * number;
  node.tokens?.splice(size);
  node.numTokens = size;
  node.blocks.splice(number);
}

function setLocks(state, op) {
  const node = existingNode(state, op);
  node.locks = op.locks;
  node.lastUse = op.last_use;
}

function splitNode(state, op) {
  const node = existingNode(state, op);
  if (state.nodes.has(op.parent)) throw new Error(`node ${op.parent} exists already`);
  const size = tokensPerBlock(node) * op.num_blocks;
  const { parent, namespace, locks, lastUse } = node;
  const tokens = node.tokens && node.tokens.splice(0, size);
  const blocks = node.blocks.splice(0, op.num_blocks);
  state.nodes.set(op.parent, { parent, namespace, tokens, numTokens: size, blocks, locks, lastUse });
  node.numTokens -= size;
  node.parent = op.parent;
}

const TREE_OPS = {
  node_added(state, op) {
    if (state.nodes.has(op.node)) throw new Error(`node ${op.node} is added twice`);
    state.nodes.set(op.node, nodeOf(op, 0, op.last_use));
  },
  node_grown(state, op) {
    const node = existingNode(state, op);
    if (node.tokens && op.tokens) node.tokens.push(...op.tokens);
    else node.tokens = null;
    node.numTokens += op.num_tokens;
    node.blocks.push(...op.blocks.map((block) => [...block]));
  },
  node_split: splitNode,
  node_shortened(state, op) {
    keepBlocks(existingNode(state, op), op.num_blocks);
  },
  node_filled(state, op) {
    existingNode(state, op).blocks[op.block] = [...op.pages];
  },
  node_removed(state, op) {
    existingNode(state, op);
    state.nodes.delete(op.node);
  },
  locked: setLocks,
  unlocked: setLocks,
};
