// Package topology decides which GPUs of a node reach each other over NVLink: it turns an
// inventory.Snapshot into NVLink domains, for the packages that publish devices and for people
// who ask why a GPU has none. It is pure but for Store, which keeps the Memory in one file. It
// must not know Kubernetes, product names or claims.
//
// # What is a link
//
// Two GPUs are linked when both work (below) and NVML says so. NVML's peer-to-peer status for
// NVLink is the truth where it was answered. Where it was not, two GPUs are linked when each
// has an active link to the other, or when both have an active link to a switch. A GPU works
// when its MIG mode is off (MIG ends NVLink peer access), at least one of its links is active,
// and the fabric that it hangs on has completed its registration and is healthy. Boards that
// answer that they have no fabric, and boards whose active links all end at GPUs, are judged
// by their links alone. GPUs in different fabric cliques are never linked.
//
// # What is a domain
//
// A domain is a set of GPUs that all reach each other. On a partial mesh the boards are parted
// into such sets: the largest first, then the largest of what is left, and among several ways
// the one whose list of sizes is greatest (two sets of four before one of four and two of two).
// Ties fall to the order of UUIDs, so the answer depends on the hardware alone and never on
// enumeration. The search is exact while it stays within a fixed number of steps, which all
// machines of up to 16 GPUs do that we know of; beyond that the best answer found so far is
// taken, still the same one each time.
//
// A domain's value is a hash of its members' UUIDs at full health. GPUs of a fabric that spans
// nodes (a cluster UUID that is not zero) have "<cluster UUID>.<clique>" instead, which is equal
// on every node. A GPU without a partner has no domain.
//
// # What is remembered
//
// A Memory holds the boards and links seen at full health. A board that is lost, in MIG mode or
// without links stays in it, so its peers keep their value. The memory changes only when
//
//   - a board or a link is seen for the first time;
//   - another UUID answers at the PCI address of a board that is gone: it was swapped, and
//     the new one is taken to reach those absent boards that the old one reached;
//   - a new board joins boards of which one is neither in the snapshot nor on the bus at all:
//     that one was removed;
//   - two boards have all the links they ever had and yet do not reach each other: the bridge
//     was moved.
//
// Until one of these happens a board that is gone for good cannot be told from one that will
// come back, and is taken for the latter. Since values are hashes of members, a wrong guess
// heals with the next scan that sees the board.
package topology
