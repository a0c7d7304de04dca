# One image for web, dispatch and workers. FLAVOUR picks the lock: cpu or cuda.
# For PyTorch's CPU build pass its index: --build-arg PIP_EXTRA_INDEX_URL=... (see README.md, "Install sizes").
FROM python:3.11-slim

ARG FLAVOUR=cpu
ARG PIP_EXTRA_INDEX_URL=

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=controlplane.settings \
    HEADWAY_HOME=/data

WORKDIR /app
COPY requirements requirements
RUN PIP_EXTRA_INDEX_URL="$PIP_EXTRA_INDEX_URL" pip install --no-cache-dir -r "requirements/$FLAVOUR.txt"

COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
    && useradd --system --uid 10001 --no-create-home headway \
    && install -d -o headway -g headway -m 700 /data /data/storage /data/scratch /data/static

USER headway
VOLUME /data
EXPOSE 8000
CMD ["python", "manage.py", "check", "--deploy"]
