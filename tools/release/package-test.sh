#!/bin/bash
# package-test.sh installs, uses, upgrades and removes the packages in DIST, and prints how long each step takes. 'make
# package-test' runs it. systemd is process 1 of a container of Debian, the image is made from TREE, an archive of
# debootstrap, and kubectl runs in another container. The commands are those of docs/run/install.md.
set -euo pipefail

: "${DIST:?}" "${TREE:?}" "${KUBECTL:?}"
name=logplane-package-test-$$
host=logplane.example.com # as in docs/run/install.md
work=$(mktemp -d)
trap 'docker rm --force $name $name-kubectl >/dev/null 2>&1; docker network rm $name >/dev/null 2>&1; docker rmi $name >/dev/null 2>&1; rm -rf "$work"' EXIT

fail() {
	echo "package-test: $*" >&2
	docker exec $name journalctl --no-pager --lines 20 --unit logplane >&2 || true
	exit 1
}

# step runs a function, prints its time, and ends the test if it fails.
step() {
	local began=$EPOCHREALTIME code=0
	set +e # in a condition, the function would go on after its first failure
	(set -e && "$2") >"$work/out" 2>&1
	code=$?
	set -e
	[ $code = 0 ] || { cat "$work/out" >&2; fail "'$1' failed"; }
	awk -v a="$began" -v b="$EPOCHREALTIME" -v what="$1" 'BEGIN { printf "%6.1f s  %s\n", b - a, what }'
	sed 's/^/          /' "$work/said" 2>/dev/null || true
	rm -f "$work/said"
}

on() { docker exec --interactive --workdir "${folder:-/}" $name bash -euo pipefail -c "$1"; }

# page runs a block of the page as root on the machine, in the folder of the named version.
page() {
	local block
	block=$(tools/release/block.sh "$1")
	folder=/packages/${2:-} on "$block"
}

# kubectl runs on another machine.
kubectl() {
	docker run --rm --name $name-kubectl --network $name --volume "$KUBECTL:/kubectl:ro" --volume "$work:/work:ro" \
		$name /kubectl --kubeconfig "${kubeconfig:-/work/admin.kubeconfig}" "$@"
}

# await tries a command until it succeeds, for three minutes.
await() {
	local deadline=$((SECONDS + 180))
	until "$@" >"$work/await" 2>&1; do
		((SECONDS < deadline)) || { cat "$work/await"; return 1; }
		sleep 0.2
	done
}

running() { [ "$(on 'systemctl is-active logplane')" = active ]; }
connected() {
	docker cp $name:/var/lib/logplane/admin.kubeconfig "$work/admin.kubeconfig" && kubectl get --raw /readyz
}
process() { on 'systemctl show --property MainPID --value logplane'; }

boot() {
	docker import "$TREE" $name
	docker network create $name
	# systemd mounts the control groups that it wants. '--privileged' would also ask for capabilities that a machine may
	# not have, and reach the machine's own control groups.
	docker run --detach --name $name --network $name --network-alias $host --hostname machine \
		--cap-add ALL --cap-drop SYS_RESOURCE --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
		--cgroupns private --tmpfs /run --tmpfs /tmp --volume "$(realpath "$DIST"):/packages/higher:ro" --env container=docker \
		$name sh -c 'umount --recursive /sys/fs/cgroup; exec /sbin/init'
	await on 'systemctl is-system-running | grep -E "running|degraded"'
	# The lower version is the same package with another number.
	on 'mkdir -p /packages/lower && cd /packages/lower && dpkg-deb -R /packages/higher/logplane-linux-*.deb tree &&
		sed -i "s/^Version: .*/&~lower/" tree/DEBIAN/control && dpkg-deb --build -Znone tree logplane-linux-amd64.deb && rm -r tree'
}
install_lower() {
	page deb lower
	[ "$(on 'stat -c "%a %U" /var/lib/logplane /etc/logplane/logplane.env | xargs')" = "700 logplane 600 root" ]
	on 'kubectl-logplane version && bash -c ". /usr/share/bash-completion/completions/logplane"'
}
connect() {
	await connected
	kubectl get namespaces
	kubectl create configmap kept --from-literal=a=1
	[ "$(kubectl config view --minify --output 'jsonpath={.clusters[0].cluster.server}')" = https://$host:7373 ]
	local token
	token=$(kubectl create token default)
	docker cp $name:/var/lib/logplane/ca.crt "$work/ca.crt"
	kubeconfig=/dev/null kubectl --server https://$host:7373 --certificate-authority /work/ca.crt --token "$token" auth whoami |
		grep system:serviceaccount:default:default
	if kubeconfig=/dev/null kubectl --server https://$host:7373 --certificate-authority /work/ca.crt auth whoami; then
		echo "a stranger is let in"
		return 1
	fi
}
hardening() {
	on 'systemd-analyze verify logplane.service'
	on 'systemd-analyze security --no-pager logplane.service | tail -1' | tee "$work/said"
}
upgrade() {
	local before
	before=$(process)
	page upgrade higher
	running
	[ "$(process)" != "$before" ]
	on 'dpkg-query --show logplane; grep ^LOGPLANE_EXTERNAL_ADDRESS /etc/logplane/logplane.env' | tee "$work/said"
	await kubectl get configmap kept
}
remove() {
	page remove
	on '! systemctl is-active logplane && ! test -e /usr/bin/logplane && test -e /var/lib/logplane/admin.kubeconfig && test -e /etc/logplane/logplane.env'
	page upgrade higher
	on 'systemctl start logplane'
	await kubectl get configmap kept
}
# nothing_left looks for the name everywhere but where this test and the logs have it.
nothing_left() {
	local left
	left=$(on 'find / -xdev \( -path /proc -o -path /sys -o -path /packages -o -path /var/log \) -prune -o -iname "*logplane*" -print
		{ getent passwd logplane; getent group logplane; } || true
		systemctl list-units --all --no-legend "logplane*"')
	[ -z "$left" ] || { echo "left: $left"; return 1; }
}
purge() {
	page purge
	nothing_left
}
# rpm knows none of Debian's packages, so it must not ask for any.
rpm_package() {
	on 'rpm --install --nodeps /packages/higher/logplane-linux-*.rpm
		echo LOGPLANE_EXTERNAL_ADDRESS='$host':7373 >>/etc/logplane/logplane.env
		systemctl start logplane'
	await connected
	local before
	before=$(process)
	on 'rpm --upgrade --force --nodeps /packages/higher/logplane-linux-*.rpm'
	[ "$(process)" != "$before" ]
	on 'rpm --erase logplane && test -e /var/lib/logplane/admin.kubeconfig && ! test -e /usr/bin/logplane'
	page rpm-purge
	nothing_left
}
# Where systemd does not run, as in a build of an image, the package is installed all the same.
without_systemd() {
	docker run --rm --volume "$(realpath "$DIST"):/packages/higher:ro" $name bash -euo pipefail -c '
		apt-get install --yes /packages/higher/logplane-linux-*.deb
		id logplane
		systemctl enable logplane
		logplane version
		apt-get purge --yes logplane
		left=$(find /etc /var/lib /usr -name "*logplane*"; getent passwd logplane || true)
		[ -z "$left" ] || { echo "left: $left"; exit 1; }'
}

step 'start a machine, and pack a lower version' boot
step 'install the deb, and start the service' install_lower
step 'kubectl from another machine, by certificate and by token' connect
step 'what the unit keeps from the process' hardening
step 'upgrade to the higher version; the data is there' upgrade
step 'remove and install again; the data is there' remove
step 'purge; nothing is left' purge
step 'install, upgrade and erase the rpm' rpm_package
step 'install and purge without systemd' without_systemd
