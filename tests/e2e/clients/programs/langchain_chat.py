"""LangChain's ChatOpenAI: a chat, whole and streamed, a schema, a tool call, and log-probabilities."""

import asyncio
import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France?"


class City(BaseModel):
    name: str = Field(max_length=12)
    inhabitants: int = Field(ge=0, le=9_999_999)


@tool
def get_time(zone: str) -> str:
    """The time in a zone."""
    return f"noon in {zone}"


model = ChatOpenAI(
    base_url=f"{sys.argv[1]}/v1", api_key="none", model="default", temperature=0, max_tokens=60, max_retries=0
)
short = model.bind(max_tokens=12)


async def streamed() -> str:
    return "".join([chunk.content async for chunk in short.astream(QUESTION)])


whole = short.invoke(QUESTION)
chunks = list(short.stream(QUESTION, stream_usage=True))
scored = model.bind(logprobs=True, max_tokens=3).invoke(QUESTION)
asked = [HumanMessage("What time is it?")]
call = model.bind_tools([get_time], tool_choice="get_time").invoke(asked)
answers = [ToolMessage(get_time.invoke(one["args"]), tool_call_id=one["id"]) for one in call.tool_calls]
city = model.with_structured_output(City, method="json_schema").invoke("Invent a city.")
said = {
    "whole": whole.content,
    "usage": whole.usage_metadata["total_tokens"],
    "chunks": "".join(chunk.content for chunk in chunks),
    "chunks_usage": sum(chunk.usage_metadata["total_tokens"] for chunk in chunks if chunk.usage_metadata),
    "streamed": asyncio.run(streamed()),
    "logprobs": len(scored.response_metadata["logprobs"]["content"]),
    "call": call.tool_calls[0]["name"],
    "after_call": short.invoke([*asked, call, *answers]).content,
    "city": city.model_dump(),
}
print(json.dumps(said))
