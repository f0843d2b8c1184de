# The log: three NATS servers, one in each zone, each with a disk of its own, or one. JetStream acknowledges a write when
# two of three have synced it, so it wants a disk and not a shared file system; a disk outlives its machine.
locals {
  log_zones = toset(slice(var.zones, 0, var.log_servers))
  log_names = { for zone in local.log_zones : zone => "log-${zone}.${aws_route53_zone.private.name}" }

  # What nats-server reads. infra/check renders the same and starts three servers with it.
  log_configuration = { for zone in local.log_zones : zone => templatefile("${path.module}/machine/nats.conf.tftpl", {
    name   = "log-${zone}"
    folder = "/var/lib/logplane"
    files  = "/etc/logplane"
    client = "0.0.0.0:4222"
    peer   = "0.0.0.0:6222"
    health = "127.0.0.1:8222"
    routes = [for other in local.log_zones : "nats-route://${local.log_names[other]}:6222"]
  }) }
}

data "aws_ssm_parameter" "machine_image" {
  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-${var.architecture}"
}

resource "aws_route53_zone" "private" {
  name = "${var.name}.internal"
  vpc {
    vpc_id = aws_vpc.cell.id
  }
}

resource "aws_route53_record" "log" {
  for_each = local.log_zones
  zone_id  = aws_route53_zone.private.zone_id
  name     = local.log_names[each.key]
  type     = "A"
  ttl      = 10
  records  = [aws_instance.log[each.key].private_ip]
}

resource "aws_security_group" "log" {
  name        = "${var.name}-log"
  description = "Servers of the log"
  vpc_id      = aws_vpc.cell.id
}

resource "aws_vpc_security_group_ingress_rule" "log_clients" {
  security_group_id            = aws_security_group.log.id
  description                  = "Clients of the log"
  referenced_security_group_id = aws_security_group.clients.id
  ip_protocol                  = "tcp"
  from_port                    = 4222
  to_port                      = 4222
}

resource "aws_vpc_security_group_ingress_rule" "log_peers" {
  security_group_id            = aws_security_group.log.id
  description                  = "The other servers of the log"
  referenced_security_group_id = aws_security_group.log.id
  ip_protocol                  = "tcp"
  from_port                    = 6222
  to_port                      = 6222
}

resource "aws_vpc_security_group_egress_rule" "log" {
  for_each          = { peers = 6222, https = 443 }
  security_group_id = aws_security_group.log.id
  description       = "To the ${each.key}"
  cidr_ipv4         = each.key == "peers" ? var.network : "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = each.value
  to_port           = each.value
}

resource "aws_instance" "log" {
  for_each               = local.log_zones
  ami                    = data.aws_ssm_parameter.machine_image.value
  instance_type          = var.log_machine
  subnet_id              = aws_subnet.private[each.key].id
  vpc_security_group_ids = [aws_security_group.log.id]
  iam_instance_profile   = aws_iam_instance_profile.machine["log"].name
  user_data = templatefile("${path.module}/machine/log.sh.tftpl", {
    name          = "log-${each.key}"
    artifacts     = var.artifacts
    release       = var.release
    secret        = var.secret
    region        = var.region
    configuration = local.log_configuration[each.key]
    authorization = file("${path.module}/machine/authorization.conf")
    agent         = templatefile("${path.module}/machine/agent.json.tftpl", { group = aws_cloudwatch_log_group.machines.name, projects = false })
  })
  # Its script needs these when it begins.
  depends_on = [aws_iam_role_policy.files, aws_iam_role_policy.machine, aws_vpc_endpoint.s3, aws_vpc_endpoint.service, aws_route.internet]
  # A new image or script takes effect when you replace the machine, one after the other: see README.md.
  lifecycle {
    ignore_changes = [ami, user_data]
  }
  metadata_options {
    http_tokens = "required"
  }
  root_block_device {
    encrypted  = true
    kms_key_id = aws_kms_key.cell.arn
  }
  tags = { Name = "${var.name}-log-${each.key}" }
}

# gp3's base of 3,000 writes a second is some 1,000 synced appends a second.
resource "aws_ebs_volume" "log" {
  for_each          = local.log_zones
  availability_zone = each.key
  size              = var.log_gib
  type              = "gp3"
  encrypted         = true
  kms_key_id        = aws_kms_key.cell.arn
  tags              = { Name = "${var.name}-log-${each.key}" }
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_volume_attachment" "log" {
  for_each    = local.log_zones
  device_name = "/dev/sdf"
  volume_id   = aws_ebs_volume.log[each.key].id
  instance_id = aws_instance.log[each.key].id
}
