# One image for the demo's site and its executors. For your own site, copy your folders instead of the demo's.
FROM python:3.13-slim AS build
WORKDIR /build
COPY .ci/constraints.txt ./
COPY pyproject.toml README.md LICENSE ./
COPY jobqueue jobqueue
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt ".[container]"

FROM python:3.13-slim
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 DJANGO_SETTINGS_MODULE=demo_project.settings
# The demo stores pictures in /data. A new volume that is mounted there gets its owner.
RUN useradd --system --uid 10001 --no-create-home app && install -d -o app /data
COPY --from=build /venv /venv
WORKDIR /app
COPY manage.py ./
COPY demo_project demo_project
COPY templates templates
COPY tools tools
USER 10001
EXPOSE 8000
CMD ["gunicorn", "--bind", "0.0.0.0:8000", "--workers", "2", "--threads", "8", "--worker-tmp-dir", "/dev/shm", "--no-control-socket", "demo_project.wsgi"]
