// Workgroups of indirect dispatches. Expects the global dispatch_args.

// As many workgroups as tiles of `tile` symbols hold `symbols` symbols.
fn set_groups(which: u32, symbols: u32, tile: u32) {
    let groups = (symbols + tile - 1u) / tile;
    dispatch_args[which * 3u] = min(groups, MAX_GROUPS);
    dispatch_args[which * 3u + 1u] = (groups + MAX_GROUPS - 1u) / MAX_GROUPS;
    dispatch_args[which * 3u + 2u] = 1u;
}
