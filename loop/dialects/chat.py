"""OpenAI's `/v1/chat/completions`: a message in; content, reasoning and tool calls out, one delta a chunk."""

from typing import Any

import msgspec

from loop.dialects import END_MARKER, STREAM_OPTIONS, Chunk, Deltas, Event, Request, Usage


class Function(Chunk, frozen=True, gc=False):
    """A piece of a tool call: its name in the first, its arguments in the next ones."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(Chunk, frozen=True, gc=False):
    """One tool call of a delta."""

    function: Function | None = None


class Delta(Chunk, frozen=True, gc=False):
    """What is new. Reasoning is spelled `reasoning_content` or `reasoning`; some servers send it under both names."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None

    def text(self) -> str:
        """All that was generated, whichever field a parser put it into."""
        text = (self.reasoning_content or self.reasoning or "") + (self.content or "")
        for call in self.tool_calls or ():
            if call.function is not None:
                text += (call.function.name or "") + (call.function.arguments or "")
        return text


class Choice(Chunk, frozen=True, gc=False):
    """A choice of a chunk."""

    delta: Delta = Delta()
    finish_reason: str | None = None


class ChatEvent(Event, frozen=True, gc=False):
    """An event of `/v1/chat/completions`."""

    choices: list[Choice] = []
    usage: Usage | None = None


DECODER = msgspec.json.Decoder(ChatEvent)


class Chat(Deltas):
    """The way most users speak to a server: through its chat template, reasoning parser and tool-call parser.

    The template is the server's, so nobody else knows how many tokens a prompt has. The server must count them; that it
    counts the same in all sessions is for the gate `same_prompts`.
    """

    path = "/v1/chat/completions"

    @staticmethod
    def body(request: Request) -> dict[str, Any]:
        """One message of a user. `max_completion_tokens` bounds reasoning and answer together."""
        assert request.text is not None, "a chat needs the prompt as text"
        return {
            "model": "default",
            "messages": [{"role": "user", "content": request.text}],
            "temperature": 0.0,
            "max_completion_tokens": request.max_new_tokens,
            "ignore_eos": request.ignore_eos,
            "stream": True,
            "stream_options": STREAM_OPTIONS,
        }

    @staticmethod
    def saw_all_of(request: Request, num_prompt_tokens: int) -> bool:
        """No fewer tokens than the message alone has. A template may trim it: outer white space is not counted on."""
        text = request.text or ""
        return num_prompt_tokens >= len(request.input_ids) - (len(text) - len(text.strip()))

    def event(self, at_ns: int, data: bytes) -> None:
        """The delta of each choice, counts of each usage."""
        if data == END_MARKER:
            self.ended = True
            return
        self.num_chunks += 1
        event = self.decode(DECODER, data)
        if event is None:
            return
        for choice in event.choices:
            self.took(at_ns, choice.delta.text(), event.usage, choice.finish_reason)
        if event.usage is not None:
            self.counted(event.usage)
