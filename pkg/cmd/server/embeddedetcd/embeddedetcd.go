// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package embeddedetcd runs a single etcd member inside the server. It listens only on unix
// sockets, and has no port and no credentials.
package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/files"
)

const (
	// MaxRequestBytes is the maximum size of a write of the embedded etcd, in bytes. The storage
	// library does not send larger writes. Objects are smaller, since they must fit into an
	// external etcd, whose default limit is 1.5 MiB.
	MaxRequestBytes = 2 << 20
	// DefaultQuotaBytes is the size at which etcd stops accepting writes, in bytes.
	DefaultQuotaBytes = 2 << 30
	// MinQuotaBytes is the minimum quota for etcd, in bytes.
	MinQuotaBytes = 16 << 20

	// privateName is the name of the private subdirectory of the data directory.
	privateName = "data"
	// socketsName is the name of a file in it with the folder of the sockets, if that is elsewhere.
	socketsName = "sockets"
	// etcdName is the name of etcd's folder in the private subdirectory.
	etcdName   = "etcd"
	memberName = "haulout"

	// maxSocketPath is the maximum length of the path of a unix socket on Linux, without the
	// terminating zero.
	maxSocketPath = 107
	startTimeout  = 2 * time.Minute
	// keptWrites and writesPerSnapshot are numbers of writes.
	keptWrites, writesPerSnapshot = 100, 1000
	// lockTimeout is longer than the time that a server takes to stop.
	lockTimeout = time.Minute
	lockRetry   = 200 * time.Millisecond
)

// Options define the location and the maximum size of the data.
type Options struct {
	// DataDir is the configured data directory, for example the root of a volume. The server
	// creates it if it does not exist, and does not change its mode: the root of a volume usually
	// belongs to root.
	DataDir string
	// QuotaBytes is the size at which etcd stops accepting writes, in bytes. The server limits it
	// to a quarter of the volume.
	QuotaBytes int64
}

// Server is a running embedded etcd.
type Server struct {
	etcd      *embed.Etcd
	endpoint  string
	socketDir string
	// socketFile is the file in the data directory that names socketDir, for Connect.
	socketFile string
	lock       *fileutil.LockedFile
	logLevel   zap.AtomicLevel
	// endMetrics stops the updates of the size metrics.
	endMetrics context.CancelFunc
}

// Start starts etcd and returns when it serves. Writes are synced to disk before they are
// acknowledged.
func Start(ctx context.Context, o Options) (*Server, error) {
	dir, err := privateFolder(o.DataDir)
	if err != nil {
		return nil, err
	}
	quota, err := quotaOn(ctx, dir, o.QuotaBytes)
	if err != nil {
		return nil, err
	}
	s := &Server{logLevel: zap.NewAtomicLevelAt(zapcore.WarnLevel)}
	if err := s.open(ctx, dir, quota); err != nil {
		s.release()
		return nil, err
	}
	if err := s.shrink(ctx, quota); err != nil {
		// Continue: clients can still read and delete objects.
		klog.FromContext(ctx).Error(err, "Cannot shrink the database", "dataDir", dir)
	}
	s.measure(ctx, dir, quota)
	klog.FromContext(ctx).Info("Embedded etcd is ready", "dataDir", dir, "endpoint", s.endpoint)
	return s, nil
}

// privateFolder returns the path of the subdirectory that only the server can access. It creates
// the subdirectory if it does not exist. The data directory itself may belong to another user and
// be accessible to other users: the root of a new volume belongs to root.
func privateFolder(dataDir string) (string, error) {
	given, err := filepath.Abs(dataDir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(given, 0o700); err != nil {
		return "", fmt.Errorf("create --data-dir: %w", err)
	}
	dir := filepath.Join(given, privateName)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("create the private folder in --data-dir: %w", err)
	}
	// Lstat, not Stat: a symbolic link could lead to a directory of another user.
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is a %v: must be a folder", dir, info.Mode().Type())
	}
	if info.Mode().Perm()&0o077 == 0 {
		return dir, nil
	}
	// The kubelet makes directories of a volume accessible to the pod's fsGroup.
	if err := os.Chmod(dir, 0o700); err != nil {
		return "", fmt.Errorf("%s has mode %v: must be 0700, and cannot be changed: %w", dir, info.Mode().Perm(), err)
	}
	return dir, nil
}

func (s *Server) open(ctx context.Context, dir string, quota int64) error {
	if err := s.takeLock(ctx, dir); err != nil {
		return err
	}
	socketDir, err := s.chooseSocketDir(dir)
	if err != nil {
		return err
	}
	client, peer := filepath.Join(socketDir, "client.sock"), filepath.Join(socketDir, "peer.sock")
	// A killed process leaves its sockets behind. No other process uses them, since this process
	// holds the lock.
	if err := files.Remove(client, peer); err != nil {
		return fmt.Errorf("remove a left-over socket: %w", err)
	}
	s.endpoint = "unix://" + client
	return s.start(ctx, s.config(dir, quota, client, peer))
}

// takeLock locks the data directory: etcd locks its files only after it has created its sockets, so
// a second server would replace the sockets of the first. takeLock waits for a while: an evicted
// pod still completes its requests while its replacement starts on the same volume.
func (s *Server) takeLock(ctx context.Context, dir string) error {
	waits := false
	err := wait.PollUntilContextTimeout(ctx, lockRetry, lockTimeout, true, func(context.Context) (bool, error) {
		lock, err := fileutil.TryLockFile(filepath.Join(dir, "lock"), os.O_WRONLY|os.O_CREATE, 0o600)
		if errors.Is(err, fileutil.ErrLocked) {
			if !waits {
				klog.FromContext(ctx).Info("Another server uses the data directory, waiting until it stops", "dataDir", dir, "timeout", lockTimeout)
			}
			waits = true
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("lock the data directory: %w", err)
		}
		s.lock = lock
		return true, nil
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("the data directory %s is in use by another server", dir)
	}
	return err
}

func (s *Server) start(ctx context.Context, cfg *embed.Config) error {
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start the embedded etcd in %s: %w", cfg.Dir, err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		s.etcd = etcd
		return nil
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(startTimeout):
		err = fmt.Errorf("not ready after %v", startTimeout)
	}
	etcd.Close()
	return fmt.Errorf("start the embedded etcd in %s: %w", cfg.Dir, err)
}

func (s *Server) config(dir string, quota int64, client, peer string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = memberName
	cfg.Dir = filepath.Join(dir, etcdName)
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{socketURL(client)}, []url.URL{socketURL(client)}
	// For peers, etcd listens only on the host part of the URL. Without a host, the socket would
	// have no file, and every process of the machine could open it.
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: peer}}, []url.URL{socketURL(peer)}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.QuotaBackendBytes = quota
	cfg.MaxRequestBytes = MaxRequestBytes
	// The API server compacts etcd itself. This setting is for the old versions that remain after a
	// long downtime.
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "30m"
	// etcd keeps the last writes in memory for members that are behind, and when it starts, it
	// reads all writes since its last snapshot. By default these are 5,000 and up to 10,000. There
	// are no other members, and one write of a large maintenance can have a megabyte.
	cfg.SnapshotCatchUpEntries, cfg.SnapshotCount = keptWrites, writesPerSnapshot
	// The watch cache's bookmarks are only as fresh as etcd's progress notifications.
	cfg.WatchProgressNotifyInterval = 5 * time.Second
	zapConfig := zap.NewProductionConfig()
	zapConfig.Level = s.logLevel
	zapConfig.Sampling = nil
	if logger, err := zapConfig.Build(); err == nil {
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger.Named("etcd"))
	}
	return cfg
}

// chooseSocketDir returns the directory for the sockets: next to the data if the path is short
// enough, otherwise a private temporary one.
func (s *Server) chooseSocketDir(dir string) (string, error) {
	if len(filepath.Join(dir, "client.sock")) <= maxSocketPath {
		// A killed server may have left the file, before the directory was moved.
		if err := files.Remove(filepath.Join(dir, socketsName)); err != nil {
			return "", err
		}
		return dir, nil
	}
	tmp, err := os.MkdirTemp("", "haulout-etcd-")
	if err != nil {
		return "", fmt.Errorf("the path of the data directory is too long for a unix socket, and no temporary folder can be created: %w", err)
	}
	s.socketDir, s.socketFile = tmp, filepath.Join(dir, socketsName)
	if err := os.WriteFile(s.socketFile, []byte(tmp), 0o600); err != nil {
		return "", fmt.Errorf("record the folder of the sockets, whose path is too long in the data directory: %w", err)
	}
	return tmp, nil
}

func (s *Server) release() {
	if s.socketDir != "" {
		_ = os.RemoveAll(s.socketDir)
		_ = os.Remove(s.socketFile)
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

func socketURL(path string) url.URL {
	return url.URL{Scheme: "unix", Path: path}
}

// Endpoint is the URL under which etcd clients reach the member.
func (s *Server) Endpoint() string { return s.endpoint }

// Client returns a client of the member. The caller must close it.
func (s *Server) Client() (*clientv3.Client, error) {
	return newClient(clientv3.Config{Endpoints: []string{s.endpoint}})
}

// Err returns a channel with the error if etcd stops by itself, for example because the disk
// failed.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Stop stops etcd. Call it after the last client was closed.
func (s *Server) Stop() {
	s.endMetrics()
	// When it stops, etcd logs the end of its own listeners as an error, which would confuse
	// readers of the log.
	s.logLevel.SetLevel(zapcore.FatalLevel)
	s.etcd.Close()
	s.release()
}
