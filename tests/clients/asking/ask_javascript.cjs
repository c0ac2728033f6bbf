// SDKs in JavaScript, Cohere's and Vercel's with its providers, asked as answering.py asks those in Python.
const dns = require("node:dns");
const { createInterface } = require("node:readline");
const { rerank } = require("ai");
const { CohereClient, CohereClientV2 } = require("cohere-ai");

const strays = [];
dns.lookup = (host, _, done) => strays.push(host) && done(new Error(`${host} is another machine`));

const cohere = (Client, more) => async ({ key, url, top_n, ...asked }) => {
  const client = new Client({ token: key, environment: url });
  const { results } = await client.rerank({ ...asked, ...more, topN: top_n ?? undefined });
  return results.map((each) => [each.index, each.relevanceScore, each.document?.text]);
};

const vercel = (provider, create, path) => async ({ key, url, top_n, model, ...asked }) => {
  const { reranking } = require(`@ai-sdk/${provider}`)[create]({ apiKey: key, baseURL: url + path });
  const { ranking } = await rerank({ ...asked, model: reranking(model), topN: top_n ?? undefined });
  return ranking.map((each) => [each.originalIndex, each.score]);
};

const ways = {
  "cohere v1": cohere(CohereClient, { returnDocuments: true }),
  "cohere v2": cohere(CohereClientV2),
  "vercel cohere": vercel("cohere", "createCohere", "/v2"),
  "vercel togetherai": vercel("togetherai", "createTogetherAI", "/together/v1"),
  "vercel voyage": vercel("voyage", "createVoyage", "/voyage/v1"),
};

createInterface({ input: process.stdin }).on("line", async (line) => {
  const { way, ...question } = JSON.parse(line);
  const outcome = await ways[way](question).then(
    (results) => ({ results: results.map(([index, score, text = null]) => ({ index, score, text })), failure: null }),
    (error) => ({ results: [], failure: { kinds: [error.constructor.name], message: error.message } }),
  );
  console.log(JSON.stringify({ ...outcome, strays: strays.splice(0) }));
});
