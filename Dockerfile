# Daybreak on a machine with an NVIDIA GPU:
#   docker build -t daybreak .
#   docker run --gpus all -v "$PWD/runs:/runs" -v "$HOME/.cache:/cache" -e XDG_CACHE_HOME=/cache daybreak \
#     run base --corpus /runs/texts --budget 8h --out /runs/mine
# Runs and the cache (compiled code, the fastest microbatch) stay outside: the same command resumes in a new container.
FROM python:3.12-slim

# Triton compiles kernels with the C compiler of the image.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/daybreak
COPY constraints.txt pyproject.toml README.md LICENSE ./
# torch first and by itself: for Linux its wheel on PyPI is the one with CUDA, and brings the CUDA libraries along.
RUN pip install --no-cache-dir -c constraints.txt torch
COPY src src
# The container is made anew for each run, so what reads data sets, filters and encodes fast is in the image.
RUN pip install --no-cache-dir -c constraints.txt '.[hub,corpus,fast]'

WORKDIR /runs
ENTRYPOINT ["daybreak"]
CMD ["--help"]
