// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// dialSocket connects to a unix socket whose path may be longer than the limit of the kernel. It
// opens the folder and uses the path of the descriptor, which is short.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(path)))
}
