// One streamed chat through the OpenAI client library, printed as it comes: openai_chat.js BASE_URL TEXT
const OpenAI = require("openai");

async function main() {
    const client = new (OpenAI.default || OpenAI)({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
    const stream = await client.chat.completions.create({
        model: "any",
        messages: [{ role: "user", content: process.argv[3] }],
        stream: true,
        temperature: 0,
        max_tokens: 24,
    });
    for await (const part of stream) {
        process.stdout.write(part.choices[0]?.delta?.content || "");
    }
}

main().catch((error) => {
    console.error(String(error));
    process.exit(1);
});
