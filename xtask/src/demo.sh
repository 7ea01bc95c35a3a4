# What the demo records: two stock programs, each as server and client over one soft-RoCE device.
# Prints nothing unless something fails.
listening() {
    tries=0
    until ss -Hltn "sport = :$1" | grep -q .; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || { echo "demo: no server on port $1 after 20 s" >&2; return 1; }
        sleep 0.1
    done
}
pair() {
    port=$1
    shift
    "$@" -p "$port" > "/tmp/server-$port" 2>&1 &
    listening "$port" && "$@" -p "$port" "$RDMA_IP" > "/tmp/client-$port" 2>&1 && wait $! && return
    echo "demo: $1 failed:" >&2
    cat "/tmp/server-$port" "/tmp/client-$port" >&2
    return 1
}
pair 18515 ib_write_bw -d "$RDMA_DEV" -q 4 -s 65536 -n 500 &&
    pair 18516 ibv_rc_pingpong -d "$RDMA_DEV" -g "$RDMA_GID_INDEX" -n 500
