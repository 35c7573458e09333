// Sets the numbers of workgroups of indirect dispatches. Uses dispatch_args, which the kernel that
// includes this file binds.

// Gives dispatch `which` (ARGS_...) ceil(symbols / tile) workgroups, split over x and y.
fn set_groups(which: u32, symbols: u32, tile: u32) {
    let groups = (symbols + tile - 1u) / tile;
    dispatch_args[which * 3u] = min(groups, MAX_GROUPS);
    dispatch_args[which * 3u + 1u] = (groups + MAX_GROUPS - 1u) / MAX_GROUPS;
    dispatch_args[which * 3u + 2u] = 1u;
}
