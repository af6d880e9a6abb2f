# dphead for a host without network: everything comes from a folder of wheels beside this file
# (docs/install.md), and the commands run as an ordinary user.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

# root installs, so that nothing that runs can change what is installed
COPY wheels/ /wheels/
RUN python -m pip install --no-cache-dir --no-index --find-links /wheels 'dphead[extract]' \
    && rm -r /wheels

# Ledgers outlive containers.
# Networks' weights are files that you give: nothing is asked of a hub.
ENV DPHEAD_HOME=/ledgers \
    HF_HUB_OFFLINE=1 \
    PYTHONUNBUFFERED=1

RUN useradd --uid 1000 --create-home dphead \
    && install --directory --owner dphead --mode 700 /ledgers /data
USER dphead
VOLUME /ledgers
WORKDIR /data
ENTRYPOINT ["dphead"]
CMD ["--help"]
