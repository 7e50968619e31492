"""OpenAI's Responses API: POST /v1/responses, without stored responses."""
