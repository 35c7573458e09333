/* The tokens of a vocabulary: their trie, and the tokens that merges spell.
 *
 * In all functions, data has the tokens end to end, and offsets, int64_t (tokens + 1,), their
 * starts and the end. */
#include "engine.h"

/* Return the number of nodes of a trie that have a token; -1 if the token of a node is not ordinary
 * or not what the path to the node spells, or if the nodes are in another order than `compile_trie`
 * makes.
 *
 * nodes: uint32_t (count, 3), first child, number of children, and token. edges: uint32_t (count -
 *     1, 2), label and target. Both are as `compile_trie` in trie.py makes them.
 * is_ordinary: uint8_t (size,), by id. parents: has room for `count` numbers. */
API int64_t llmgpu_spelled_tokens(const uint32_t *nodes, const uint32_t *edges, const uint8_t *data,
                                  const int64_t *offsets, const uint8_t *is_ordinary, int64_t count,
                                  int64_t size, uint32_t *parents)
{
    int64_t next = 1, found = 0;

    for (int64_t node = 0; node < count; node++) {
        const uint32_t *fields = nodes + 3 * node;
        int64_t children = fields[1];
        int must_be_missing = node == 0, may_be_missing = node == 0 || children > 0;
        if ((fields[2] == NO_ID && !may_be_missing) || (fields[2] != NO_ID && must_be_missing))
            return -1;
        if (fields[0] != (children > 0 ? next - 1 : 0) || children > count - next ||
            (children > 0 && next <= node))
            return -1;
        for (int64_t child = next; child < next + children; child++) {
            const uint32_t *edge = edges + 2 * (child - 1);
            if (edge[0] > 255 || edge[1] != child || (child > next && edge[0] <= edge[-2]))
                return -1;
            parents[child] = (uint32_t)node;
        }
        next += children;
    }
    if (next != count)
        return -1;
    for (int64_t node = 1; node < count; node++) {
        uint32_t token = nodes[3 * node + 2];
        if (token == NO_ID)
            continue;
        if (token >= size || !is_ordinary[token])
            return -1;
        int64_t at = offsets[token + 1], above = node;
        for (; above != 0 && at > offsets[token]; above = parents[above])
            if (edges[2 * (above - 1)] != data[--at])
                return -1;
        if (above != 0 || at != offsets[token])
            return -1;
        found++;
    }
    return found;
}

/* A node of a trie that is being made: its parent, the label of the edge from the parent, the child
 * made last (0: none), the sibling made before this node (0: none), and its token. */
typedef struct {
    uint32_t parent, label, child, sibling, token;
} Branch;

/* Return the child of a branch by its label. The child is made if there is none.
 *
 * slots: a hash table of the branches by parent and label; 0 in free slots. */
static uint32_t child_by(Branch *branches, uint32_t *count, uint32_t *slots, uint64_t mask,
                         uint32_t parent, uint32_t label)
{
    uint64_t slot = mix_words(parent, label) & mask;

    for (; slots[slot] != 0; slot = (slot + 1) & mask) {
        const Branch *found = &branches[slots[slot]];
        if (found->parent == parent && found->label == label)
            return slots[slot];
    }
    slots[slot] = *count;
    branches[*count] = (Branch){parent, label, 0, branches[parent].child, NO_ID};
    branches[parent].child = *count;
    return (*count)++;
}

/* Lay out the trie of tokens as `compile_trie` in trie.py does, and return its number of nodes.
 *
 * ids: int64_t (count,), the ids of the tokens, ascending. Of equal tokens the lowest id counts.
 * slots: zeros; their number is a power of two, and at least twice the largest number of nodes.
 * branches, order, nodes, edges: have room for 5, 1, 3 and 2 numbers for each node. The trie is
 *     written into `nodes` and `edges`. */
API int64_t llmgpu_lay_out_trie(const uint8_t *data, const int64_t *offsets, const int64_t *ids,
                                int64_t count, uint32_t *slots, int64_t num_slots, Branch *branches,
                                uint32_t *order, uint32_t *nodes, uint32_t *edges)
{
    uint32_t made = 1, listed = 1;

    branches[0] = (Branch){NO_ID, 0, 0, 0, NO_ID};
    for (int64_t i = 0; i < count; i++) {
        uint32_t node = 0;
        for (int64_t at = offsets[ids[i]]; at < offsets[ids[i] + 1]; at++)
            node = child_by(branches, &made, slots, (uint64_t)num_slots - 1, node, data[at]);
        if (node != 0 && branches[node].token == NO_ID)
            branches[node].token = (uint32_t)ids[i];
    }
    order[0] = 0;
    for (uint32_t k = 0; k < made; k++) {
        const Branch *branch = &branches[order[k]];
        uint32_t first = listed;
        for (uint32_t child = branch->child; child != 0; child = branches[child].sibling) {
            uint32_t at = listed++; /* insert the child so that siblings are sorted by label */
            for (; at > first && branches[order[at - 1]].label > branches[child].label; at--)
                order[at] = order[at - 1];
            order[at] = child;
        }
        for (uint32_t target = first; target < listed; target++) {
            edges[2 * (target - 1)] = branches[order[target]].label;
            edges[2 * (target - 1) + 1] = target;
        }
        nodes[3 * k] = listed > first ? first - 1 : 0;
        nodes[3 * k + 1] = listed - first;
        nodes[3 * k + 2] = branch->token;
    }
    return made;
}

/* Append the results of merges to tokens, and return the new number of tokens. Return -1 for a merge
 * of a token that does not exist, for a result that is neither the next token nor an existing one,
 * and if tokens would have more than `most` bytes in all.
 *
 * merges: uint32_t (count, 3), left, right and result. data: NULL to compute only the offsets.
 *     offsets: has room for a token for each merge. */
API int64_t llmgpu_append_merges(const uint32_t *merges, int64_t count, uint8_t *data,
                                 int64_t *offsets, int64_t tokens, int64_t most)
{
    for (const uint32_t *merge = merges; merge < merges + 3 * count; merge += 3) {
        if (merge[0] >= tokens || merge[1] >= tokens || merge[2] > tokens)
            return -1;
        if (merge[2] < tokens)
            continue;
        for (int side = 0; side < 2; side++) {
            int64_t begin = offsets[merge[side]], length = offsets[merge[side] + 1] - begin;
            int64_t at = side == 0 ? offsets[tokens] : offsets[tokens + 1];
            if (data != NULL)
                memcpy(data + at, data + begin, (size_t)length);
            else if (length > most - at)
                return -1;
            offsets[tokens + 1] = at + length;
        }
        tokens++;
    }
    return tokens;
}

/* Return whether each merge spells its result. A result must be as long as its two tokens together. */
API int llmgpu_merges_spell(const uint32_t *merges, int64_t count, const uint8_t *data,
                            const int64_t *offsets)
{
    for (const uint32_t *merge = merges; merge < merges + 3 * count; merge += 3) {
        int64_t left = offsets[merge[0]], right = offsets[merge[1]], result = offsets[merge[2]];
        size_t first = (size_t)(offsets[merge[0] + 1] - left);
        if (memcmp(data + result, data + left, first) != 0 ||
            memcmp(data + result + first, data + right, (size_t)(offsets[merge[1] + 1] - right)) != 0)
            return 0;
    }
    return 1;
}
