// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package embeddedetcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"haulout.dev/haulout/pkg/files"
)

const (
	// dialTimeout is the time that a command waits for a running server.
	dialTimeout = 10 * time.Second
	// revisionBump is added to the revision of a restored database. It is larger than the number of
	// writes between two backups, so that watching clients list again.
	revisionBump = 1_000_000_000
	copyPage     = 500
)

// Member is a connection to the etcd of a running server. It uses the socket in the data directory,
// which only the user of the server can open.
type Member struct {
	client   *clientv3.Client
	endpoint string
	dir      string
}

// Connect connects to the server that uses a data directory. It returns an error if no server uses
// the directory.
func Connect(ctx context.Context, dataDir string) (*Member, error) {
	given, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(given, privateName)
	socket := filepath.Join(dir, "client.sock")
	if elsewhere, err := os.ReadFile(filepath.Join(dir, socketsName)); err == nil {
		socket = filepath.Join(string(elsewhere), "client.sock")
	}
	if _, err := os.Stat(socket); err != nil {
		return nil, fmt.Errorf("--data-dir=%s: no server has a socket there: %w", dataDir, err)
	}
	m := &Member{endpoint: "unix://" + socket, dir: dir}
	if m.client, err = newClient(clientv3.Config{Endpoints: []string{m.endpoint}}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if _, err := m.client.Status(ctx, m.endpoint); err != nil {
		m.Close()
		return nil, fmt.Errorf("--data-dir=%s: the server does not answer at %s: %w", dataDir, socket, err)
	}
	return m, nil
}

// newClient returns a client that logs nothing and sends no larger requests than the embedded etcd
// accepts.
func newClient(config clientv3.Config) (*clientv3.Client, error) {
	config.DialTimeout, config.Logger = dialTimeout, zap.NewNop()
	config.MaxCallSendMsgSize = MaxRequestBytes + 1<<20
	return clientv3.New(config)
}

// Close closes the connection.
func (m *Member) Close() { _ = m.client.Close() }

// Snapshot writes a snapshot of the running server's database for Restore.
func (m *Member) Snapshot(ctx context.Context, to io.Writer) error {
	answer, err := m.client.SnapshotWithVersion(ctx)
	if err != nil {
		return fmt.Errorf("request a snapshot: %w", err)
	}
	defer answer.Snapshot.Close()
	if _, err := io.Copy(to, answer.Snapshot); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	return nil
}

// Status describes the database of a running server. Sizes are in bytes.
type Status struct {
	// Version is the version of etcd.
	Version  string `json:"version"`
	Revision int64  `json:"revision"`
	// Objects is the number of keys.
	Objects int64 `json:"objects"`
	// DatabaseBytes is the size of the database file, which a defragmentation reduces to
	// InUseBytes.
	DatabaseBytes int64 `json:"databaseBytes"`
	InUseBytes    int64 `json:"inUseBytes"`
	// QuotaBytes is the size at which the database stops accepting writes.
	QuotaBytes int64 `json:"quotaBytes"`
	// DiskFreeBytes is the free space of the volume.
	DiskFreeBytes int64 `json:"diskFreeBytes"`
	// Full is set if the database has reached its quota and accepts no writes.
	Full bool `json:"full"`
}

// Status returns the status of the database.
func (m *Member) Status(ctx context.Context) (Status, error) {
	answer, err := m.client.Status(ctx, m.endpoint)
	if err != nil {
		return Status{}, fmt.Errorf("read the status: %w", err)
	}
	count, err := m.client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	if err != nil {
		return Status{}, fmt.Errorf("count the objects: %w", err)
	}
	alarms, err := m.client.AlarmList(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("list the alarms: %w", err)
	}
	_, free, err := volume(m.dir)
	if err != nil {
		return Status{}, err
	}
	status := Status{
		Version: answer.Version, Revision: answer.Header.Revision, Objects: count.Count,
		DatabaseBytes: answer.DbSize, InUseBytes: answer.DbSizeInUse, QuotaBytes: answer.DbSizeQuota, DiskFreeBytes: free,
	}
	for _, alarm := range alarms.Alarms {
		status.Full = status.Full || alarm.Alarm == etcdserverpb.AlarmType_NOSPACE
	}
	return status, nil
}

// Defragment removes old versions from the database and returns their space to the volume. The
// server responds to no request until Defragment returns. A full database accepts writes again
// afterwards. If it is still too large for that, Defragment returns an error.
func (m *Member) Defragment(ctx context.Context) error {
	status, err := m.Status(ctx)
	if err != nil {
		return err
	}
	// The copy of the database is on the same volume.
	if status.DiskFreeBytes < status.InUseBytes {
		return fmt.Errorf("the volume has %d bytes free, and a copy of the database takes %d: enlarge the volume, or delete other files",
			status.DiskFreeBytes, status.InUseBytes)
	}
	if err := compact(ctx, m.client, status.Revision); err != nil {
		return err
	}
	if _, err := m.client.Defragment(ctx, m.endpoint); err != nil {
		return fmt.Errorf("defragment the database: %w", err)
	}
	if status, err = m.Status(ctx); err != nil {
		return err
	}
	full, err := spaceAlarms(ctx, m.client)
	if err != nil || len(full) == 0 {
		return err
	}
	return disarm(ctx, m.client, full, status.DatabaseBytes, status.QuotaBytes)
}

// SnapshotStatus describes the content of a snapshot.
type SnapshotStatus = snapshot.Status

// ReadSnapshot checks a snapshot and describes it.
func ReadSnapshot(path string) (SnapshotStatus, error) {
	// Check the sum first: the database library maps the file into memory, and an incomplete file
	// would crash the process.
	if err := checkSum(path); err != nil {
		return SnapshotStatus{}, err
	}
	status, err := snapshot.NewV3(zap.NewNop()).Status(path)
	if err != nil {
		return SnapshotStatus{}, fmt.Errorf("open the snapshot %s: %w", path, err)
	}
	return status, nil
}

// checkSum compares the last bytes of a snapshot, a SHA-256 sum, with the checksum of the preceding
// bytes. These are a database, whose size is a multiple of 512 bytes.
func checkSum(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() <= sha256.Size || info.Size()%512 != sha256.Size {
		return fmt.Errorf("%s is not a complete snapshot: it has %d bytes", path, info.Size())
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, file, info.Size()-sha256.Size); err != nil {
		return err
	}
	want, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return fmt.Errorf("%s is damaged: its content does not match its checksum", path)
	}
	return nil
}

// Restored describes a restored data directory.
type Restored struct {
	SnapshotStatus
	// Previous is the folder with the data from before the restore; empty if there was none.
	Previous string
}

// Restore replaces the data in a data directory with the data of a snapshot, and keeps the previous
// data. No server may use the directory. A server that starts on restored data does not run its
// controllers until --accept-restored-state permits it.
func Restore(from io.Reader, dataDir string, now time.Time) (restored Restored, err error) {
	dir, unlock, err := lockStopped(dataDir)
	if err != nil {
		return Restored{}, err
	}
	defer unlock()
	file, next := filepath.Join(dir, "restore.snapshot"), filepath.Join(dir, "etcd.restore")
	// An interrupted restore leaves these files behind.
	remove := func() error { return errors.Join(os.RemoveAll(file), os.RemoveAll(next)) }
	if err := remove(); err != nil {
		return Restored{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := files.Write(file, from, fileutil.PrivateFileMode); err != nil {
		return Restored{}, fmt.Errorf("copy the snapshot to the volume: %w", err)
	}
	if restored.SnapshotStatus, err = ReadSnapshot(file); err != nil {
		return Restored{}, err
	}
	peer := socketURL(filepath.Join(dir, "peer.sock"))
	if err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: memberName, OutputDataDir: next, InitialClusterToken: memberName,
		PeerURLs: []string{peer.String()}, InitialCluster: memberName + "=" + peer.String(),
		RevisionBump: revisionBump, MarkCompacted: true,
	}); err != nil {
		return Restored{}, fmt.Errorf("restore the snapshot: %w", err)
	}
	data := filepath.Join(dir, etcdName)
	if fileutil.Exist(data) {
		if restored.Previous, err = files.RenameUnused(data, data+".before-"+now.UTC().Format("20060102T150405Z")); err != nil {
			return Restored{}, err
		}
	}
	if err := os.Rename(next, data); err != nil {
		return Restored{}, err
	}
	return restored, files.SyncFolder(dir)
}

// lockStopped locks a data directory that no server uses.
func lockStopped(dataDir string) (dir string, unlock func(), err error) {
	if dir, err = privateFolder(dataDir); err != nil {
		return "", nil, err
	}
	lock, err := fileutil.TryLockFile(filepath.Join(dir, "lock"), os.O_WRONLY|os.O_CREATE, fileutil.PrivateFileMode)
	if errors.Is(err, fileutil.ErrLocked) {
		return "", nil, fmt.Errorf("--data-dir=%s: a server uses it; stop the server first", dataDir)
	}
	if err != nil {
		return "", nil, fmt.Errorf("lock the data directory: %w", err)
	}
	return dir, func() { _ = lock.Close() }, nil
}

// Copy copies all keys with a prefix to another etcd, which must not have any key with this prefix,
// and returns the number of copied keys. No server may use the data directory. The copy has other
// revisions: a server that starts on it does not run its controllers until --accept-restored-state
// permits it.
func Copy(ctx context.Context, o Options, to clientv3.Config, prefix string) (count int, err error) {
	_, unlock, err := lockStopped(o.DataDir)
	if err != nil {
		return 0, err
	}
	unlock()
	target, err := newClient(to)
	if err != nil {
		return 0, fmt.Errorf("reach the other etcd: %w", err)
	}
	defer target.Close()
	existing, err := countKeys(ctx, target, prefix)
	if err != nil {
		return 0, fmt.Errorf("reach the other etcd: %w", err)
	}
	if existing > 0 {
		return 0, fmt.Errorf("the other etcd already has %d keys with the prefix %s: it must have none", existing, prefix)
	}
	server, err := Start(ctx, o)
	if err != nil {
		return 0, err
	}
	defer server.Stop()
	source, err := server.Client()
	if err != nil {
		return 0, err
	}
	defer source.Close()
	if count, err = copyKeys(ctx, source, target, prefix); err != nil {
		return count, fmt.Errorf("after %d keys: %w; delete the prefix %s in the other etcd before you try again", count, err, prefix)
	}
	copied, err := countKeys(ctx, target, prefix)
	if err != nil {
		return count, fmt.Errorf("count the copied keys: %w", err)
	}
	if copied != int64(count) {
		return count, fmt.Errorf("the other etcd has %d keys after %d were copied: another client writes there", copied, count)
	}
	return count, nil
}

func countKeys(ctx context.Context, client *clientv3.Client, prefix string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	answer, err := client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return answer.Count, nil
}

func copyKeys(ctx context.Context, from, to *clientv3.Client, prefix string) (count int, err error) {
	next, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		page, err := from.Get(ctx, next, clientv3.WithRange(end), clientv3.WithLimit(copyPage))
		if err != nil {
			return count, err
		}
		for _, pair := range page.Kvs {
			key, value := string(pair.Key), string(pair.Value)
			answer, err := to.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Commit()
			if err != nil {
				return count, fmt.Errorf("write %s: %w", key, err)
			}
			if !answer.Succeeded {
				return count, fmt.Errorf("the other etcd already has key %s", key)
			}
			count++
		}
		if !page.More {
			return count, nil
		}
		next = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}
